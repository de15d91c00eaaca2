"""FedProto (Tan et al. 2022): models stay at home, class means of the features go up, global prototypes come back.

Each client trains its whole model by cross-entropy and is pulled to the prototype of each record's class.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from fedlog.algorithms.losses import NearPrototype
from fedlog.algorithms.shape import (
    EVERYTHING,
    Algorithm,
    Bodies,
    BodySummary,
    Exchange,
    ModelPlan,
    Phase,
    Schedule,
    Trained,
    Work,
)
from fedlog.core.heads.gaussian import nearest_of
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message


class Prediction(StrEnum):
    """The rule that classifies a record."""

    LOCAL_HEAD = "local-head"
    NEAREST_PROTOTYPE = "nearest-prototype"


@dataclass(frozen=True)
class FedProto(Algorithm):
    """Cross-entropy and the distance to the global prototypes; only prototypes are exchanged."""

    plan: ModelPlan
    epochs: int = 5
    learning_rate: float = 0.001
    regularisation: float = 1.0
    prediction: Prediction = Prediction.LOCAL_HEAD

    name = "fedproto"
    bodies = Bodies.ANY
    may_federate = True

    def __post_init__(self) -> None:
        if self.regularisation < 0:
            raise InputError(f"the regularisation of fedproto must not be negative: {self.regularisation}")

    @property
    def schedule(self) -> Schedule:
        """One exchange a round: train everything, then take the class means of all own records."""
        train = Phase(EVERYTHING, self.epochs, NearPrototype(self.regularisation), self.learning_rate)
        return Schedule(round=(Exchange("prototypes", (train,), BodySummary.STATISTICS),))

    def begin(self, key: Key) -> Params:
        """No prototypes yet, and a seed: everyone starts from the same initial model."""
        return {
            **super().begin(key),
            "means": torch.zeros(self.plan.n_class, self.plan.width, dtype=torch.float64),
            "present": torch.zeros(self.plan.n_class, dtype=torch.bool),
        }

    def broadcast(self, server: Params) -> Message:
        """The global prototypes and which classes have one, or at first the seed."""
        if not bool(server["present"].any()):
            return Message(Kind.SEED, (server["seed"],))
        return Message(Kind.MEANS, (server["means"], server["present"]))

    def hear(self, message: Message, known: Params) -> Params:
        """The prototypes; before the first round there are none."""
        if message.kind is Kind.SEED:
            nothing = self.begin(Key(0))
            return {"means": nothing["means"].to(torch.float32), "present": nothing["present"]}
        return {"means": message.arrays[0], "present": message.arrays[1]}

    def open(self, exchange: str, home: Params, heard: Params) -> Work:
        """The own model, pulled to the prototypes."""
        return Work(home, heard)

    def close(self, exchange: str, home: Params, work: Work, trained: Trained) -> tuple[Params, Message | None]:
        """The model stays; the class means go, each with the number of records behind it."""
        means, _ = trained.statistics.means()
        counts = trained.statistics.counts.round().to(torch.int64)
        return trained.params, Message(Kind.MEANS, (means[:, 1:].to(torch.float32), counts))

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The means over everyone's records; a class that no participant holds keeps its prototype."""
        sums, counts = total.arrays
        new = counts > 0
        means = torch.where(new[:, None], sums / counts.clamp(min=1)[:, None], server["means"])
        return {"seed": server["seed"], "means": means, "present": server["present"] | new}

    def deploy(self, home: Params, heard: Params) -> Params:
        """The own body under the own head, or under the nearest global prototype as a head."""
        if self.prediction is Prediction.LOCAL_HEAD or not bool(heard["present"].any()):
            return home
        return {**home, HEAD: nearest_of(heard["means"], heard["present"])}

    def observe(self, server: Params) -> dict[str, float]:
        """How many classes have a prototype."""
        return {"prototypes": float(server["present"].sum())}
