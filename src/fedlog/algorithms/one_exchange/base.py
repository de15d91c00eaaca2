"""The base of all one-exchange methods: clients send sums once, the server solves a head from them and sends it back.

The head is the same as if all records were in one place, because the sums are the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedlog.algorithms.interface import Algorithm, Exchange, FeatureSummary, ModelPlan, Schedule, Work, WorkResult
from fedlog.core.heads.gaussian import ABSENT, QuadraticHead
from fedlog.core.heads.personal import STRENGTHS, mix_moments
from fedlog.core.packed_matrix import pack_triangle, unpack_triangle
from fedlog.core.stats import Detail, Moments, Statistics, is_count_usable
from fedlog.models.body import HEAD, NOISE, QUADRATIC, SPREAD, Params
from fedlog.wire.message import Contribution, Kind, Message

# Names in the state that a client keeps (its home): sums or mixtures for its personal head, and classes it has.
OWN_SUMS, OWN_SECOND, OWN_CLASSES = "own.sums", "own.second", "own.classes"
OWN_MIXTURES = ("own.records", "own.means", "own.variances")
AT_HOME = (OWN_SUMS, OWN_SECOND, OWN_CLASSES, *OWN_MIXTURES)
SUMS, SECOND = (
    "sums",
    "second",
)  # names in the server's state, and in what clients receive if personal heads need the sums


class PredictedClasses(StrEnum):
    """Which classes a client's model can predict."""

    ALL = "all"
    OWN = "own"
    """Only those that the client has training records of."""


@dataclass(frozen=True)
class OneExchange(Algorithm):
    """The base class of methods that solve a head from summed moments. Subclasses define `solve` or `step`.

    They also set `detail`: which second moments are summed.
    """

    plan: ModelPlan
    classes: PredictedClasses = PredictedClasses.ALL
    personal: bool = False

    name = ""
    detail = Detail.MEANS
    rounds = 1  # more rounds would send the same sums again
    sends_moments_for_personal = True
    """Whether clients need the summed moments to solve personal heads; if not, the global head is enough."""
    may_federate = True
    can_remove_client = True
    sums_last_uploads = True
    sends_statistics = True

    def solve(self, moments: Moments, noise_std: float = 0.0) -> Tensor | QuadraticHead:
        """The head from the summed moments of all clients; `noise_std` is the std of the privacy noise in them."""
        raise NotImplementedError

    def solve_personal_head(self, own: Moments, received: Params, strength: float) -> Tensor | QuadraticHead | None:
        """A client's personal head, from its own sums plus the sums of all clients scaled to `strength` records.

        None if the server did not send the sums of all clients, or if the method has no personal head of this strength.
        """
        if SUMS not in received:
            return None
        return self.solve(mix_moments(self._read_moments(received, (SUMS, SECOND)), own, strength))

    @property
    def schedule(self) -> Schedule:
        """One exchange without training: clients send their summed moments."""
        return Schedule(round=(Exchange("statistics", (), FeatureSummary.STATISTICS, self.detail),))

    def join(self, initial: Params) -> Params:
        """The state that the client keeps: its frozen body."""
        return {name: value for name, value in initial.items() if name != HEAD}

    def broadcast(self, server: Params) -> Message:
        """The head, or the summed moments if personal heads need them.

        Until the head is solved, the seed of the initial model.
        """
        if HEAD not in server:
            return Message(Kind.SEED, (server["seed"],))
        if self.personal and self.sends_moments_for_personal:
            second = (server[SECOND],) if SECOND in server else ()
            return Message(Kind.MOMENTS if second else Kind.STATISTICS, (server[SUMS], *second))
        if QUADRATIC in server:
            quadratic = server[QUADRATIC]
            return Message(
                Kind.QUADRATIC_HEAD, (server[HEAD], quadratic if quadratic.ndim == 2 else pack_triangle(quadratic))
            )
        return Message(Kind.HEAD, (server[HEAD],))

    def receive(self, message: Message, known: Params) -> Params:
        """The head. If the broadcast has summed moments instead: these moments, and the head solved from them."""
        if message.kind is Kind.SEED:
            return {HEAD: torch.zeros(self.plan.n_class, 1 + self.plan.width)}
        if message.kind in (Kind.MOMENTS, Kind.STATISTICS):
            moments = Moments.from_arrays(tuple(array.to(torch.float64) for array in message.arrays), self.detail)
            sums = dict(zip((SUMS, SECOND), message.arrays, strict=False))
            return {**to_float32(_convert_head_to_params(self.solve(moments))), **sums}
        if message.kind is Kind.QUADRATIC_HEAD:
            linear, quadratic = message.arrays
            diagonal = quadratic.shape[1] == self.plan.width and self.detail is Detail.SQUARES
            return {HEAD: linear, QUADRATIC: quadratic if diagonal else unpack_triangle(quadratic, self.plan.width)}
        return {HEAD: message.arrays[0]}

    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        """The client's frozen body with the newest head; neither is trained."""
        return Work({**home, HEAD: received[HEAD]})

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        """To keep: the body, and the client's sums if it solves a personal head. To send: the client's sums."""
        moments = Moments(trained.statistics, self.detail, trained.second)
        message = Message(Kind.STATISTICS if self.detail is Detail.MEANS else Kind.MOMENTS, moments.arrays)
        kept = dict(zip((OWN_SUMS, OWN_SECOND), moments.arrays, strict=False)) if self.personal else {}
        return {**self.join(trained.params), **kept, **self.mark_own_classes(trained.statistics.counts)}, message

    def mark_own_classes(self, counts: Tensor) -> Params:
        """A mask of the classes that the client has records of, for the state it keeps.

        Empty if models may predict all classes. `counts` (n_class,) are the client's numbers of records.
        """
        return {OWN_CLASSES: counts > 0} if self.classes is PredictedClasses.OWN else {}

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The server's next state, with the head of the summed moments.

        The old state if there are no records, or too few compared with the privacy noise.
        """
        moments = Moments.from_arrays(total.arrays, self.detail)
        if not is_count_usable(moments.statistics, total.noise_std):
            return server
        sums = dict(zip((SUMS, SECOND), total.arrays, strict=False))
        return {"seed": server["seed"], **sums, **self.solve_model_parts(moments, total.noise_std)}

    def solve_model_parts(self, moments: Moments, noise_std: float) -> Params:
        """The parts of the model that are solved from the summed moments, by name."""
        return _convert_head_to_params(self.solve(moments, noise_std))

    def deploy(self, home: Params, received: Params) -> Params:
        """The frozen body with the global head; with `classes = own` the model predicts only the client's classes."""
        body = {name: value for name, value in home.items() if name not in AT_HOME}
        others = {name: received[name] for name in (QUADRATIC, SPREAD, NOISE) if name in received}
        return {**body, HEAD: self.restrict_to_own_classes(received[HEAD], home), **others}

    def restrict_to_own_classes(self, head: Tensor, home: Params) -> Tensor:
        """The head (n_class, 1 + w), changed so that it never predicts classes that the client has no record of."""
        own = home.get(OWN_CLASSES)
        if own is None or not bool(own.any()):
            return head
        bias = torch.where(own, head[:, 0], ABSENT)
        return torch.cat([bias[:, None], head[:, 1:]], dim=1)

    def candidates(self, home: Params, received: Params) -> Sequence[tuple[str, Params]]:
        """The models that a client chooses from: with the global head, then with its personal heads.

        Each personal head gives the global head less weight than the one before. Empty without personal heads.
        """
        if not self.personal or not (OWN_SUMS in home or OWN_MIXTURES[0] in home):
            return ()
        deployed = self.deploy(home, received)
        found = [("global", deployed)]
        for strength in STRENGTHS:
            solved = None if math.isinf(strength) else self.solve_personal_head_from_home(home, received, strength)
            if solved is not None:
                model = {**deployed, **to_float32(_convert_head_to_params(solved))}
                found.append((f"own {strength:g}", {**model, HEAD: self.restrict_to_own_classes(model[HEAD], home)}))
        return found

    def solve_personal_head_from_home(
        self, home: Params, received: Params, strength: float
    ) -> Tensor | QuadraticHead | None:
        """A client's personal head, from the sums that the client keeps.

        None if the client has no records, or if the method has no personal head of this strength.
        """
        own = self._read_moments(home, (OWN_SUMS, OWN_SECOND))
        return self.solve_personal_head(own, received, strength) if own.statistics.total else None

    def _read_moments(self, params: Params, names: tuple[str, str]) -> Moments:
        """The moments that `params` holds under these names: sums, and second moments if there are any."""
        arrays = tuple(params[name].to(torch.float64) for name in names if name in params)
        return Moments.from_arrays(arrays, self.detail)

    def observe(self, server: Params) -> dict[str, float]:
        """The number of records in the sums, to be recorded each round."""
        return {"records": float(Statistics(server[SUMS]).total)} if SUMS in server else {}

    def advice(self, rounds: int) -> tuple[str, ...]:
        """A note that one round is enough, if the user asks for more."""
        if rounds == 1:
            return ()
        return (f"note: {self.name} needs only one round; {rounds} rounds send the same sums {rounds} times",)


def to_float32(params: Params) -> Params:
    """The parameters as float32, like the features and the messages."""
    return {name: value.to(torch.float32) for name, value in params.items()}


def _convert_head_to_params(solved: Tensor | QuadraticHead) -> Params:
    if isinstance(solved, QuadraticHead):
        return {HEAD: solved.linear, QUADRATIC: solved.quadratic}
    return {HEAD: solved}
