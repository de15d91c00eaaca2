"""FedLog and FedLog-C: clients keep their bodies and send statistics; the server solves one exact MAP head.

FedLog broadcasts the head. FedLog-C broadcasts the summed statistics; from them every client solves the same head and
takes the class means for its loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor

from fedlog.algorithms.interface import (
    BODY,
    Algorithm,
    Bodies,
    Exchange,
    FeatureSummary,
    Loss,
    ModelPlan,
    Phase,
    Schedule,
    Work,
    WorkResult,
    cross_entropy,
)
from fedlog.algorithms.losses import ClassMeansLoss, ComparedFeatures
from fedlog.core.keys import Key
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.core.stats import Statistics, find_least_count_for_mean, is_count_usable, measure_spread_of_means
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message

NOISE = "noise"  # in the server's state of a private run: the std of the noise in every entry of the statistics


class FirstHead(StrEnum):
    """Where the head of round 1 comes from."""

    RANDOM = "random"  # orthogonal rows from a shared seed: only the seed is sent
    STATISTICS = "statistics"  # solved from the untrained bodies' statistics: one more exchange, and equal bodies


def make_random_head(n_class: int, width: int, norm: float, seed: int) -> Tensor:
    """A head (n_class, 1 + width) without bias; rows have L2 norm `norm`, and are orthogonal if n_class <= width."""
    rows = torch.randn(n_class, width, dtype=torch.float64, generator=Key(seed).child("first head").torch())
    if n_class <= width:
        rows = torch.linalg.qr(rows.mT).Q.mT
    rows = norm * rows / rows.norm(dim=1, keepdim=True)
    return torch.cat([torch.zeros(n_class, 1, dtype=torch.float64), rows], dim=1).to(torch.float32)


@dataclass(frozen=True)
class FedLog(Algorithm):
    """FedLog (the paper's Algorithm 1): clients train bodies, the server solves the head from summed statistics."""

    plan: ModelPlan
    epochs: int = 5
    learning_rate: float = 0.001
    first_head: FirstHead = FirstHead.RANDOM
    head_norm: float = 5.0
    nu: float = 1.0
    carry: float | None = None
    """The share of the old statistics that is added to new ones; None: the server keeps every client's last ones."""

    name = "fedlog"
    bodies = Bodies.ANY
    may_federate = True
    sends_statistics = True

    def __post_init__(self) -> None:
        self._check_option("nu", self.nu >= 0, "must not be negative")
        self._check_option("head_norm", self.head_norm > 0, "must be above 0")
        hint = "it is the share of the old posterior that is kept: --carry 0.9; 0 forgets all earlier rounds"
        self._check_option("carry", self.carry is None or 0 <= self.carry <= 1, "must be 0 to 1", hint)

    @property
    def can_remove_client(self) -> bool:
        """Whether a client can be taken out of a run: only without `carry`.

        With `carry`, the server's sum keeps the client's old statistics.
        """
        return self.carry is None

    @property
    def sums_last_uploads(self) -> bool:
        """Whether the last statistics of clients that skip a round are summed again: only without `carry`.

        The body of such a client does not change, so its statistics are still right. With `carry`, the server's old
        sum contains them already.
        """
        return self.carry is None

    @property
    def loss(self) -> Loss:
        """The loss that trains the bodies: cross-entropy."""
        return cross_entropy

    @property
    def schedule(self) -> Schedule:
        """One exchange a round; an opening exchange if the first head comes from statistics."""
        opening = Exchange("opening", (), FeatureSummary.STATISTICS)
        train = Phase(BODY, self.epochs, self.loss, self.learning_rate)
        return Schedule(
            round=(Exchange("statistics", (train,), FeatureSummary.STATISTICS),),
            opening=opening if self.first_head is FirstHead.STATISTICS else None,
        )

    def join(self, initial: Params) -> Params:
        """The parameters that the client keeps: the body without the head."""
        return {name: value for name, value in initial.items() if name != HEAD}

    def broadcast(self, server: Params) -> Message:
        """The global head; before there is one, the seed of the random first head."""
        return Message(Kind.HEAD, (server[HEAD],)) if HEAD in server else Message(Kind.SEED, (server["seed"],))

    def receive(self, message: Message, known: Params) -> Params:
        """The global head; if the message holds only a seed, the random head made from it."""
        if message.kind is Kind.SEED:
            seed = int(message.arrays[0])
            return {HEAD: make_random_head(self.plan.n_class, self.plan.width, self.head_norm, seed)}
        return {HEAD: message.arrays[0]}

    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        """The start of training: the client's body with the global head."""
        return Work(self.deploy(home, received))

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        """To keep: the body. To send: the statistics of all training records of the client."""
        return self.join(trained.params), Message(Kind.STATISTICS, (trained.statistics.sums,))

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The exact MAP head of the summed statistics (eq. 11).

        With privacy noise, the number of records is the sum of the noisy counts. If it is too small compared with its
        noise, the old head stays.
        """
        total = self._add_old_statistics(server, total)
        (sums,) = total.arrays
        statistics = Statistics(sums)
        if not is_count_usable(statistics, total.noise_std):
            return server
        solved = solve_head(Prior(nu=self.nu).posterior(statistics))
        noise = {NOISE: torch.tensor([total.noise_std], dtype=torch.float64)} if total.noise_std else {}
        return {
            "seed": server["seed"],
            "statistics": sums,
            HEAD: solved.weights,
            "relative_gradient": torch.tensor(solved.certificate.relative_gradient, dtype=torch.float64),
            **noise,
        }

    def _add_old_statistics(self, server: Params, total: Contribution) -> Contribution:
        """This round's statistics Phi plus `carry` (g) times the old sum T: T <- g * T + Phi.

        The std of the privacy noise is that of the new sum. The prior is not part of T, and so never multiplied by g:
        clients can solve the same head from T alone.
        """
        if not self.carry or "statistics" not in server:
            return total
        noise = math.hypot(total.noise_std, self.carry * float(server.get(NOISE, torch.zeros(1))))
        return replace(total, arrays=(total.arrays[0] + self.carry * server["statistics"],), noise_std=noise)

    def deploy(self, home: Params, received: Params) -> Params:
        """The client's body with the newest head."""
        return {**home, HEAD: received[HEAD]}

    def observe(self, server: Params) -> dict[str, float]:
        """The spread of the class means, the largest norm of a row of the head, and the solver's relative gradient."""
        if HEAD not in server:
            return {}
        statistics, noise_std = Statistics(server["statistics"]), float(server.get(NOISE, torch.zeros(1)))
        observed = {
            "spread_of_means": measure_spread_of_means(statistics, find_least_count_for_mean(noise_std)),
            "head_row_norm_max": float(server[HEAD].norm(dim=1).max()),
            "relative_gradient": float(server["relative_gradient"]),
        }
        return {**observed, "noise_std_of_sum": noise_std, "noisy_count": statistics.total} if noise_std else observed


@dataclass(frozen=True)
class FedLogC(FedLog):
    """FedLog with a loss that pulls features to the global mean of their class, and pushes them from other means.

    The C stands for clustered: the features of a class gather around their mean.
    """

    first_head: FirstHead = FirstHead.STATISTICS
    alpha: float = 0.1  # strength of the pull
    beta: float = 0.001  # strength of the push
    margin: float | None = 5.0  # class means further away do not push; None: all push, as in the paper
    distance: ComparedFeatures | None = None
    """Which features are compared with the means; None: those before the dropout on them."""

    name = "fedlog-c"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_option("alpha", self.alpha >= 0, "must not be negative")
        self._check_option("beta", self.beta >= 0, "must not be negative")
        hint = "margin=none is the paper's loss"
        self._check_option("margin", self.margin is None or self.margin > 0, "must be above 0", hint)
        others = self.plan.n_class - 1
        if self.margin is None and self.beta > 0 and self.alpha <= others * self.beta:
            raise InputError(
                "without a margin, fedlog-c diverges unless alpha is above (classes - 1) * beta, found: "
                f"alpha {self.alpha}, (classes - 1) * beta = {others * self.beta:g}",
                hint=f"set beta below {self.alpha / max(others, 1):g}, or set a margin",
            )

    @property
    def growth_factor(self) -> float:
        """The factor by which distances between class means grow in a round, from the loss's pull and push alone."""
        held = self.alpha - (self.plan.n_class - 1) * self.beta
        if not self.beta:
            return 1.0
        return (self.alpha + self.beta) / held if held > 0 else math.inf

    @property
    def loss(self) -> Loss:
        """The loss: cross-entropy, a pull to the mean of the own class, and a push from other means (eq. 12)."""
        return ClassMeansLoss(self.alpha, self.beta, self.margin, self.distance or ComparedFeatures.BEFORE_DROPOUT)

    def broadcast(self, server: Params) -> Message:
        """The summed statistics and, in a private run, the std of their noise.

        Before there are statistics, the seed of the random first head.
        """
        if HEAD in server:
            noise = (server[NOISE],) if NOISE in server else ()
            return Message(Kind.STATISTICS, (server["statistics"], *noise))
        return super().broadcast(server)

    def receive(self, message: Message, known: Params) -> Params:
        """The head, solved as the server solves it, and the class means.

        If the message holds only a seed: the random head made from it, and no class means.
        """
        if message.kind is Kind.SEED:
            means = torch.zeros(self.plan.n_class, self.plan.width)
            nothing = torch.zeros(self.plan.n_class, dtype=torch.bool)
            return super().receive(message, known) | {"means": means, "present": nothing}
        statistics = Statistics(message.arrays[0].to(torch.float64))
        noise_std = float(message.arrays[1]) if len(message.arrays) > 1 else 0.0
        means, present = statistics.means(find_least_count_for_mean(noise_std))
        head = solve_head(Prior(nu=self.nu).posterior(statistics)).weights
        return {HEAD: head.to(torch.float32), "means": means[:, 1:].to(torch.float32), "present": present}

    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        """The start of training: the client's body with the global head, and the class means for the loss."""
        return Work(self.deploy(home, received), {"means": received["means"], "present": received["present"]})

    def advice(self, rounds: int) -> tuple[str, ...]:
        """A note on how much distances between class means may grow in this many rounds; empty if `beta` is 0.

        Without a margin, a warning is added if the distances may grow more than 100-fold.
        """
        if not self.beta:
            return ()
        try:
            grown = self.growth_factor**rounds
        except OverflowError:
            grown = math.inf
        note = f"fedlog-c: growth factor g = {self.growth_factor:.4g} a round, g^{rounds} = {grown:.3g}"
        if self.margin is not None:
            return (f"{note}; the push stops at a distance of {self.margin:g}",)
        if grown <= 100:
            return (note,)
        return (note, "warning: above 100 the class means can grow without bound; lower beta, or set a margin")
