"""The methods that average parameters. They differ in the layers that are shared or kept, and in what is trained when.

| method    | shared              | kept by the client  | trained in a round           | trained at the end |
|-----------|---------------------|---------------------|------------------------------|--------------------|
| fedavg    | everything          | nothing             | everything                   |                    |
| lg-fedavg | the top k layers    | the rest            | everything                   |                    |
| fedper    | all but the top k   | the top k layers    | everything                   |                    |
| fedrep    | all but the top k   | the top k layers    | the top, then the rest       | the top            |
| fedbabu   | all but the head    | the initial head    | all but the head             | everything         |
| local     | nothing             | everything          | everything                   |                    |

`lg-fedavg-1` and `lg-fedavg-2` are lg-fedavg with k = 1 and k = 2. `pooled` is `local` for one client that has the
records of all clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedlog.algorithms.interface import (
    BODY,
    EVERYTHING,
    Algorithm,
    Bodies,
    Exchange,
    ModelPlan,
    Phase,
    Schedule,
    TrainingRecords,
    Work,
    WorkResult,
    cross_entropy,
    select_all_but,
    select_only,
)
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Kind, Message


@dataclass(frozen=True)
class Averaging(Algorithm):
    """Averages the shared layers, weighted by the clients' numbers of records; each client keeps its other layers."""

    name: str
    shared: tuple[str, ...]
    phases: tuple[Phase, ...]
    closing: tuple[Phase, ...] = ()
    bodies: Bodies = Bodies.SAME
    training: TrainingRecords = TrainingRecords.OWN
    may_federate: bool = False

    @property
    def schedule(self) -> Schedule:
        """One exchange a round: train, then send the shared layers; at the end the method's closing phase, if any."""
        return Schedule(round=(Exchange("average", self.phases),), closing=self.closing)

    def broadcast(self, server: Params) -> Message:
        """The averaged parameters; before the first average, the seed of the initial model."""
        if len(server) == 1:
            return Message(Kind.SEED, (server["seed"],))
        return Message(Kind.PARAMETERS, (*(server[name] for name in self.shared), torch.zeros(1, dtype=torch.int64)))

    def receive(self, message: Message, known: Params) -> Params:
        """The averaged parameters by name; empty if the message holds only the seed of the initial model."""
        if message.kind is Kind.SEED:
            return {}
        return dict(zip(self.shared, message.arrays[:-1], strict=True))

    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        """The start of training: the client's own layers with the shared layers as last received."""
        return Work(self.deploy(home, received))

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        """To keep: the layers that are not shared. To send: the shared layers with the client's number of records."""
        if not trained.records:
            kept = home  # nothing was trained; home may still be the whole initial model, which is needed
        else:
            kept = {name: value for name, value in trained.params.items() if name not in self.shared}
        if not self.shared:
            return kept, None
        records = torch.tensor([trained.records])
        return kept, Message(Kind.PARAMETERS, (*(trained.params[name] for name in self.shared), records))

    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The mean of the shared layers, weighted by records; the old state if there are no records."""
        return average_parameters(server, self.shared, total)

    def deploy(self, home: Params, received: Params) -> Params:
        """The whole model: the layers the client keeps, and the shared layers as last received."""
        return {**home, **received}


def average_parameters(server: Params, names: tuple[str, ...], total: Contribution) -> Params:
    """The server's state with the mean of these parameters, weighted by records; unchanged if there are no records."""
    *sums, records = total.arrays
    if records.item() == 0:
        return server
    return {**server, **{name: summed / records for name, summed in zip(names, sums, strict=True)}}


def _make_full_training_phase(epochs: int, learning_rate: float) -> Phase:
    return Phase(EVERYTHING, epochs, cross_entropy, learning_rate)


def _check_and_list_top_params(plan: ModelPlan, count: int, method: str) -> tuple[str, ...]:
    """The names of the parameters in the top `count` layers; InputError unless layers remain below them."""
    if not 1 <= count < len(plan.layers):
        raise InputError(
            f"the number of top layers of {method} must be 1 to {len(plan.layers) - 1} for this body, found: {count}",
            hint="layers are counted from the top, and the head is the first: use a body with more layers, or set "
            "personal_layers if the method has this option",
        )
    return plan.list_top_params(count)


def local(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001) -> Averaging:
    """Each client trains alone: the baseline that other methods have to beat."""
    return Averaging("local", (), (_make_full_training_phase(epochs, learning_rate),), bodies=Bodies.ANY)


def pooled(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001) -> Averaging:
    """One model trained on the records of all clients: an upper bound, since it needs all data in one place."""
    return Averaging("pooled", (), (_make_full_training_phase(epochs, learning_rate),), training=TrainingRecords.POOLED)


def fedavg(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001) -> Averaging:
    """FedAvg (McMahan et al. 2017): the whole model is averaged."""
    return Averaging(
        "fedavg", plan.list_top_params(len(plan.layers)), (_make_full_training_phase(epochs, learning_rate),)
    )


def lg_fedavg_1(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001) -> Averaging:
    """LG-FedAvg (Liang et al. 2020) with one global layer: the head is averaged, each client keeps its body."""
    return Averaging(
        "lg-fedavg-1",
        (HEAD,),
        (_make_full_training_phase(epochs, learning_rate),),
        bodies=Bodies.ANY,
        may_federate=True,
    )


def lg_fedavg_2(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001) -> Averaging:
    """LG-FedAvg (Liang et al. 2020) with two global layers: the top two are averaged, each client keeps the rest."""
    return Averaging(
        "lg-fedavg-2",
        _check_and_list_top_params(plan, 2, "lg-fedavg-2"),
        (_make_full_training_phase(epochs, learning_rate),),
    )


def fedper(plan: ModelPlan, epochs: int = 5, learning_rate: float = 0.001, personal_layers: int = 2) -> Averaging:
    """FedPer (Arivazhagan et al. 2019): clients keep the top layers and average the rest; all layers train together."""
    _check_and_list_top_params(plan, personal_layers, "fedper")
    return Averaging(
        "fedper", plan.list_params_below(personal_layers), (_make_full_training_phase(epochs, learning_rate),)
    )


def fedrep(
    plan: ModelPlan,
    epochs: int = 5,
    learning_rate: float = 0.001,
    personal_layers: int = 2,
    head_epochs: int = 10,
    head_learning_rate: float = 0.005,
) -> Averaging:
    """FedRep (Collins et al. 2021): train the personal top layers with the rest frozen, then only the rest."""
    personal = _check_and_list_top_params(plan, personal_layers, "fedrep")
    top = Phase(select_only(*personal), head_epochs, cross_entropy, head_learning_rate)
    rest = Phase(select_all_but(*personal), epochs, cross_entropy, learning_rate)
    return Averaging("fedrep", plan.list_params_below(personal_layers), (top, rest), closing=(top,))


def fedbabu(
    plan: ModelPlan,
    epochs: int = 5,
    learning_rate: float = 0.001,
    fine_tune_epochs: int = 5,
    fine_tune_learning_rate: float = 0.001,
) -> Averaging:
    """FedBABU (Oh et al. 2022): the head is random and not trained in rounds; at the end the model is fine-tuned."""
    rest = Phase(BODY, epochs, cross_entropy, learning_rate)
    tune = _make_full_training_phase(fine_tune_epochs, fine_tune_learning_rate)
    return Averaging("fedbabu", plan.list_params_below(1), (rest,), closing=(tune,))
