"""The methods that average parameters, side by side: they differ in what is shared, what stays home, which phases.

| method    | shared              | at home             | phases of a round            | closing            |
|-----------|---------------------|---------------------|------------------------------|--------------------|
| fedavg    | everything          | nothing             | everything                   |                    |
| lg-fedavg | the top k layers    | the rest            | everything                   |                    |
| fedper    | all but the top k   | the top k layers    | everything                   |                    |
| fedrep    | all but the top k   | the top k layers    | the top, then the rest       | the top            |
| fedbabu   | all but the head    | (the first head)    | all but the head             | everything         |
| local     | nothing             | everything          | everything                   |                    |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlog.algorithms.shape import (
    BODY,
    EVERYTHING,
    Algorithm,
    Bodies,
    Exchange,
    ModelPlan,
    Phase,
    Schedule,
    Trained,
    TrainingRecords,
    Work,
    all_but,
    cross_entropy,
    only,
)
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message


@dataclass(frozen=True)
class Averaging(Algorithm):
    """Some layers are averaged, weighted by the clients' records; the others stay at home."""

    name: str
    shared: tuple[str, ...]
    phases: tuple[Phase, ...]
    closing: tuple[Phase, ...] = ()
    bodies: Bodies = Bodies.SAME
    training: TrainingRecords = TrainingRecords.OWN
    may_federate: bool = False

    @property
    def schedule(self) -> Schedule:
        """One exchange a round."""
        return Schedule(round=(Exchange("average", self.phases),), closing=self.closing)

    def broadcast(self, server: Params) -> Message:
        """The averaged parameters, or at first the seed."""
        if len(server) == 1:
            return Message(Kind.SEED, (server["seed"],))
        return Message(Kind.PARAMETERS, (*(server[name] for name in self.shared), torch.zeros(1, dtype=torch.int64)))

    def hear(self, message: Message, known: Params) -> Params:
        """The averaged parameters by name."""
        if message.kind is Kind.SEED:
            return {}
        return dict(zip(self.shared, message.arrays[:-1], strict=True))

    def open(self, exchange: str, home: Params, heard: Params) -> Work:
        """The whole model: the client's own layers, and the shared layers as last received."""
        return Work({**home, **heard})

    def close(self, exchange: str, home: Params, work: Work, trained: Trained) -> tuple[Params, Message | None]:
        """Keep the layers that are not shared; send the shared ones, with the number of records behind them."""
        if not trained.records:
            kept = home  # nothing was trained; and if nobody has trained yet, the initial model is still needed
        else:
            kept = {name: value for name, value in trained.params.items() if name not in self.shared}
        if not self.shared:
            return kept, None
        records = torch.tensor([trained.records])
        return kept, Message(Kind.PARAMETERS, (*(trained.params[name] for name in self.shared), records))

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The mean weighted by records."""
        *sums, records = total.arrays
        if records.item() == 0:
            return server
        return {"seed": server["seed"], **{name: s / records for name, s in zip(self.shared, sums, strict=True)}}

    def deploy(self, home: Params, heard: Params) -> Params:
        """The whole model, as in `open`."""
        return {**home, **heard}


def _train_everything(epochs: int, learning_rate: float) -> Phase:
    return Phase(EVERYTHING, epochs, cross_entropy, learning_rate)


def _take_top_layers(plan: ModelPlan, count: int, method: str) -> tuple[str, ...]:
    if not 1 <= count < len(plan.layers):
        raise InputError(
            f"{method} needs between 1 and {len(plan.layers) - 1} top layers for this body: {count} given",
            hint="the head is the first layer from the top",
        )
    return plan.top(count)


def local(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001) -> Averaging:
    """No exchange at all: the bar that every method has to clear."""
    return Averaging("local", (), (_train_everything(epochs, learning_rate),), bodies=Bodies.ANY)


def pooled(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001) -> Averaging:
    """One model on everyone's records: what federation tries to approach, at the price of sending the data."""
    return Averaging("pooled", (), (_train_everything(epochs, learning_rate),), training=TrainingRecords.POOLED)


def fedavg(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001) -> Averaging:
    """McMahan et al. 2017: the whole model is averaged."""
    return Averaging("fedavg", plan.top(len(plan.layers)), (_train_everything(epochs, learning_rate),))


def lg_fedavg_1(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001) -> Averaging:
    """Liang et al. 2020 with a one-layer global top: the head is averaged, the body stays."""
    return Averaging(
        "lg-fedavg-1", (HEAD,), (_train_everything(epochs, learning_rate),), bodies=Bodies.ANY, may_federate=True
    )


def lg_fedavg_2(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001) -> Averaging:
    """Liang et al. 2020 with a two-layer global top."""
    return Averaging(
        "lg-fedavg-2", _take_top_layers(plan, 2, "lg-fedavg-2"), (_train_everything(epochs, learning_rate),)
    )


def fedper(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001, personal_layers: int = 2) -> Averaging:
    """Arivazhagan et al. 2019: the top layers stay personal, the rest is averaged; all train jointly."""
    _take_top_layers(plan, personal_layers, "fedper")
    return Averaging("fedper", plan.below(personal_layers), (_train_everything(epochs, learning_rate),))


def fedrep(
    plan: ModelPlan,
    epochs: int = 5,
    learning_rate: float = 0.001,
    personal_layers: int = 2,
    head_epochs: int = 10,
    head_learning_rate: float = 0.005,
) -> Averaging:
    """Collins et al. 2021: first the personal top under a frozen rest, then the rest under the frozen top."""
    personal = _take_top_layers(plan, personal_layers, "fedrep")
    top = Phase(only(*personal), head_epochs, cross_entropy, head_learning_rate)
    rest = Phase(all_but(*personal), epochs, cross_entropy, learning_rate)
    return Averaging("fedrep", plan.below(personal_layers), (top, rest), closing=(top,))


def fedbabu(
    plan: ModelPlan,
    epochs: int = 5,
    learning_rate: float = 0.001,
    fine_tune_epochs: int = 5,
    fine_tune_learning_rate: float = 0.001,
) -> Averaging:
    """Oh et al. 2022: the head is random and never trained; the averaged model is fine-tuned at the very end."""
    rest = Phase(BODY, epochs, cross_entropy, learning_rate)
    tune = _train_everything(fine_tune_epochs, fine_tune_learning_rate)
    return Averaging("fedbabu", plan.below(1), (rest,), closing=(tune,))
