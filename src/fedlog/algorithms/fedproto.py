"""FedProto (Tan et al. 2022): clients keep their models and send class means; the server averages them to prototypes.

Each client trains its whole model by cross-entropy and a term that pulls features to the prototype of their class.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from fedlog.algorithms.interface import (
    EVERYTHING,
    Algorithm,
    Bodies,
    Exchange,
    FeatureSummary,
    ModelPlan,
    Phase,
    Schedule,
    Work,
    WorkResult,
)
from fedlog.algorithms.losses import NearPrototypeLoss
from fedlog.core.heads.gaussian import make_nearest_mean_head
from fedlog.core.keys import Key
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message


class PredictionRule(StrEnum):
    """How a client classifies a record: with its own head, or by the nearest prototype."""

    LOCAL_HEAD = "local-head"
    NEAREST_PROTOTYPE = "nearest-prototype"


@dataclass(frozen=True)
class FedProto(Algorithm):
    """Trains by cross-entropy and the distance to the global prototypes; exchanges only class means."""

    plan: ModelPlan
    epochs: int = 5
    learning_rate: float = 0.001
    regularisation: float = 1.0
    prediction: PredictionRule = PredictionRule.LOCAL_HEAD

    name = "fedproto"
    bodies = Bodies.ANY
    may_federate = True

    def __post_init__(self) -> None:
        self._check_option("regularisation", self.regularisation >= 0, "must not be negative")

    @property
    def schedule(self) -> Schedule:
        """One exchange a round: train the whole model, then sum its features by class."""
        train = Phase(EVERYTHING, self.epochs, NearPrototypeLoss(self.regularisation), self.learning_rate)
        return Schedule(round=(Exchange("prototypes", (train,), FeatureSummary.STATISTICS),))

    def begin(self, key: Key) -> Params:
        """The server's first state: a seed for the initial model of all clients, and no prototypes yet."""
        return {
            **super().begin(key),
            "means": torch.zeros(self.plan.n_class, self.plan.width, dtype=torch.float64),
            "present": torch.zeros(self.plan.n_class, dtype=torch.bool),
        }

    def broadcast(self, server: Params) -> Message:
        """The prototypes and which classes have one; before there are any, the seed of the initial model."""
        if not bool(server["present"].any()):
            return Message(Kind.SEED, (server["seed"],))
        return Message(Kind.MEANS, (server["means"], server["present"]))

    def receive(self, message: Message, known: Params) -> Params:
        """The prototypes; if the message holds only the seed, no class has a prototype."""
        if message.kind is Kind.SEED:
            nothing = self.begin(Key(0))
            return {"means": nothing["means"].to(torch.float32), "present": nothing["present"]}
        return {"means": message.arrays[0], "present": message.arrays[1]}

    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        """The start of training: the client's model, and the prototypes for the loss."""
        return Work(home, received)

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        """To keep: the model. To send: the class means and the number of records of each class."""
        means, _ = trained.statistics.means()
        counts = trained.statistics.counts.round().to(torch.int64)
        return trained.params, Message(Kind.MEANS, (means[:, 1:].to(torch.float32), counts))

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The new prototypes: the class means of all participants; a class without records keeps its old prototype."""
        sums, counts = total.arrays
        new = counts > 0
        means = torch.where(new[:, None], sums / counts.clamp(min=1)[:, None], server["means"])
        return {"seed": server["seed"], "means": means, "present": server["present"] | new}

    def deploy(self, home: Params, received: Params) -> Params:
        """The client's model, or its body with a head that chooses the nearest prototype."""
        if self.prediction is PredictionRule.LOCAL_HEAD or not bool(received["present"].any()):
            return home
        return {**home, HEAD: make_nearest_mean_head(received["means"], received["present"])}

    def observe(self, server: Params) -> dict[str, float]:
        """The number of classes that have a prototype."""
        return {"prototypes": float(server["present"].sum())}
