"""`fedlog.testing.check_method`: methods that are broken on purpose do not get through, and sound ones do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedlog.algorithms.averaging import fedavg
from fedlog.algorithms.interface import Batch, Bodies, Carry, ModelPlan, Work, WorkResult
from fedlog.models.body import HEAD, Params
from fedlog.testing import MethodBrokenError, check_method
from fedlog.wire.message import Message


@dataclass(frozen=True)
class Wrapped:
    """FedAvg, of which each class below breaks one thing."""

    plan: ModelPlan
    epochs: int = 2
    learning_rate: float = 0.01
    name: str = "wrapped"

    def __getattr__(self, name: str) -> Any:
        return getattr(fedavg(self.plan, epochs=self.epochs, learning_rate=self.learning_rate), name)


class Unweighted(Wrapped):
    """Counts every client as one record, so that one without any moves the average."""

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        kept, message = self.__getattr__("finish_exchange")(exchange, home, work, replace(trained, records=1))
        return kept, message


class Drawing(Wrapped):
    """Draws from PyTorch's own random numbers instead of a key."""

    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        work: Work = self.__getattr__("start_exchange")(exchange, home, received)
        return replace(work, params={name: value + 1e-3 * torch.rand(()) for name, value in work.params.items()})


@dataclass(frozen=True)
class Remembering(Wrapped):
    """Keeps a count beside the server's state, which no checkpoint knows."""

    steps: Any = field(default_factory=count)

    def deploy(self, home: Params, received: Params) -> Params:
        model: Params = self.__getattr__("deploy")(home, received)
        return {**model, HEAD: model[HEAD] + 1e-3 * next(self.steps)}


class InPlace(Wrapped):
    """Changes its arguments instead of returning new values."""

    def deploy(self, home: Params, received: Params) -> Params:
        model: Params = self.__getattr__("deploy")(home, received)
        model[HEAD] *= 0.999
        return model


def _plain_mean(batch: Batch, constants: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
    """A loss that ignores the weights, and so counts padding."""
    logits = batch.logits.movedim(-1, -2) if batch.logits.ndim > 2 else batch.logits
    losses = cross_entropy(logits, batch.labels, reduction="none")
    return losses.mean(-1), carry


class CountingPadding(Wrapped):
    """Has a loss that is right in the loop and wrong where clients of different sizes are stacked."""

    @property
    def schedule(self) -> Any:
        schedule = self.__getattr__("schedule")
        (exchange,) = schedule.round
        phases = tuple(replace(phase, loss=_plain_mean) for phase in exchange.phases)
        return replace(schedule, round=(replace(exchange, phases=phases),))


class AnyBody(Wrapped):
    """Says that any body will do, and averages all layers."""

    bodies = Bodies.ANY


class Headless(Wrapped):
    """Deploys a model without a head."""

    def deploy(self, home: Params, received: Params) -> Params:
        model: Params = self.__getattr__("deploy")(home, received)
        return {name: value for name, value in model.items() if name != HEAD}


class Idle(Wrapped):
    """Uploads what it started from, whatever was trained."""

    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        kept, message = self.__getattr__("finish_exchange")(exchange, home, work, replace(trained, params=work.params))
        return kept, message


BROKEN = {
    Unweighted: "unequal clients",
    Drawing: "same seed repeats",
    Remembering: "same seed repeats",
    InPlace: "same seed repeats|arguments unchanged",
    CountingPadding: "backends agree",
    AnyBody: "separate first parameters|different bodies",
    Headless: "",
    Idle: "learns",
}


def test_a_sound_method_of_ones_own_passes() -> None:
    check_method(Wrapped)
    check_method("fedlog", nu=2.0)


@pytest.mark.parametrize("method", BROKEN, ids=lambda method: method.__name__)
def test_a_broken_method_is_caught_and_its_fault_named(method: type[Wrapped]) -> None:
    with pytest.raises(MethodBrokenError, match=rf"{method.__name__} breaks the contract \(.*({BROKEN[method]})"):
        check_method(method)
