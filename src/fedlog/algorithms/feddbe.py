"""FedDBE (Zhang et al. 2023, domain bias eliminator): FedAvg with a personal shift of the features.

Each client keeps a vector, the shift, that is added to its features and learns how its records differ from those of
others. A loss term pulls the client's mean feature to a global mean, which is computed once before the first round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlog.algorithms.averaging import average_parameters
from fedlog.algorithms.interface import (
    EVERYTHING,
    Algorithm,
    Exchange,
    FeatureSummary,
    ModelPlan,
    Phase,
    Schedule,
    Work,
    WorkResult,
    cross_entropy,
)
from fedlog.algorithms.losses import NearGlobalMeanLoss
from fedlog.models.body import SHIFT, Params
from fedlog.wire.message import Contribution, Kind, Message

OPENING = "mean feature"


@dataclass(frozen=True)
class FedDBE(Algorithm):
    """Averages the whole model except the shift; pulls the mean feature of batches to the global mean."""

    plan: ModelPlan
    epochs: int = 5
    learning_rate: float = 0.001
    kappa: float = 50.0
    momentum: float = 1.0

    name = "feddbe"

    def __post_init__(self) -> None:
        self._check_option("kappa", self.kappa >= 0, "must not be negative")
        self._check_option("momentum", 0 < self.momentum <= 1, "must be above 0 and at most 1")

    @property
    def shared(self) -> tuple[str, ...]:
        """The names of all parameters except the shift."""
        return self.plan.list_top_params(len(self.plan.layers))

    @property
    def schedule(self) -> Schedule:
        """In the opening train by cross-entropy and send the mean feature; in each round train and send the model."""
        plain = Phase(EVERYTHING, self.epochs, cross_entropy, self.learning_rate)
        near_mean = Phase(EVERYTHING, self.epochs, NearGlobalMeanLoss(self.kappa, self.momentum), self.learning_rate)
        return Schedule(
            round=(Exchange("average", (near_mean,)),), opening=Exchange(OPENING, (plain,), FeatureSummary.STATISTICS)
        )

    def join(self, initial: Params) -> Params:
        """What a new client keeps at first: the initial model, and a shift of zeros."""
        return {**initial, SHIFT: torch.zeros(self.plan.width)}

    def broadcast(self, server: Params) -> Message:
        """The averaged model, once there is one, and the global mean; before the opening, the initial model's seed.

        The mean never changes, but it is sent each time for clients that take part for the first time.
        """
        if "mean" not in server:
            return Message(Kind.SEED, (server["seed"],))
        model = tuple(server[name] for name in self.shared if name in server)
        return Message(Kind.PARAMETERS, (*model, server["mean"], torch.zeros(1, dtype=torch.int64)))

    def receive(self, message: Message, known: Params) -> Params:
        """The global mean (0 before the opening), and the averaged model once there is one."""
        if message.kind is Kind.SEED:
            return {"mean": torch.zeros(self.plan.width)}
        *model, mean, _ = message.arrays
        return {**dict(zip(self.shared, model, strict=bool(model))), "mean": mean}

    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        """The start of training: in the opening, the model without the shift.

        In a round, the model with the shift, and the global mean for the loss.
        """
        params = self.deploy(home, received)
        if exchange == OPENING:
            return Work({name: value for name, value in params.items() if name != SHIFT})
        return Work(params, {"mean": received["mean"]}, {"running": torch.zeros(self.plan.width)})

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        """After the opening, to keep: the old state; to send: the mean feature.

        After training in a round, to keep: the shift; to send: the model.
        """
        records = torch.tensor([trained.records])
        if exchange == OPENING:
            mean = trained.statistics.sums[:, 1:].sum(0) / max(trained.records, 1)
            return home, Message(Kind.PARAMETERS, (mean.to(torch.float32), records))
        kept = {SHIFT: trained.params[SHIFT]} if trained.records else home
        return kept, Message(Kind.PARAMETERS, (*(trained.params[name] for name in self.shared), records))

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The mean, weighted by records, of the mean features (opening) or of the models (rounds)."""
        return average_parameters(server, ("mean",) if exchange == OPENING else self.shared, total)

    def deploy(self, home: Params, received: Params) -> Params:
        """The whole model: the client's shift, and the other parameters as last averaged (at first, as initialised)."""
        return {**home, **{name: value for name, value in received.items() if name != "mean"}}

    def observe(self, server: Params) -> dict[str, float]:
        """The L2 norm of the global mean feature."""
        return {"global_mean_norm": float(server["mean"].norm())} if "mean" in server else {}
