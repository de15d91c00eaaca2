"""Clients trained one by one, all batches of an epoch by one call, against the loop over clients."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlog.algorithms.registry import make_method
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.data.transforms import Transform
from fedlog.engine.clients import list_clients, make_model_plan
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.block import chain_training, library
from fedlog.engine.training.block.trainer import BlockBackend
from fedlog.engine.training.tasks import CLOCK, Fit, Settings, Task
from fedlog.models.body import HEAD, Body, build_body, draw_initial_head
from fedlog.settings.execution import BackendChoice
from fedlog.settings.training import AdamMoments, Optimiser

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason="the passes are not compiled here")
MakeFederation = Callable[..., Federation]
RECORDS = [5, 0, 1, 8]  # in batches of 3: whole batches, short ones, an empty client


class Residual(nn.Module):
    """A padded convolution, and a strided one with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.second, self.short = nn.Conv2d(4, 6, 3, 2, padding=1), nn.Conv2d(4, 6, 1, 2, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        maps = torch.relu(self.norm(self.first(inputs)))
        return torch.relu(self.second(maps) + self.short(maps)).mean((2, 3))


def perceptron() -> nn.Module:
    first = nn.Linear(98, 9), nn.LayerNorm(9), nn.GELU()
    return nn.Sequential(nn.Flatten(), *first, nn.Linear(9, 5), nn.LayerNorm(5), nn.GELU())


BODIES: dict[str, Callable[[], nn.Module]] = {"residual": Residual, "perceptron": perceptron}


@pytest.fixture(params=["", "convolve_plainly", "convolve_narrowly"])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    """The passes of each instruction set."""
    flag = ctypes.c_int.in_dll(library.LIBRARY, request.param or "convolve_plainly")
    flag.value = bool(request.param)
    yield request.param
    flag.value = 0


def _tasks(federation: Federation, body: Body, method: str, dtype: torch.dtype, rate: float = 0.002) -> list[Task]:
    algorithm: Any = make_method(
        method, make_model_plan(federation, [body] * len(RECORDS)), {"epochs": 2, "learning_rate": rate}
    )
    start = {HEAD: draw_initial_head(body.width, federation.n_class, Key(1)), **body.make_initial_params(Key(1))}
    home = algorithm.join({name: value.to(dtype) for name, value in start.items()})
    received = algorithm.receive(algorithm.broadcast(algorithm.begin(Key(1))), {})
    exchange = algorithm.schedule.round[0]
    work = algorithm.start_exchange(exchange.name, home, {name: value.to(dtype) for name, value in received.items()})
    clients = list_clients(federation, [body] * len(RECORDS), algorithm)
    return [Task(c, work, exchange.phases, Key(2).child(c.name)) for c in clients]


def _train(federation: Federation, tasks: list[Task], settings: Settings, choice: BackendChoice) -> list[Fit]:
    backend = Engine(settings, choice).make_backends(federation, [task.client for task in tasks])[
        tasks[0].client.body.name
    ]
    fits = backend.train(tasks) if choice is BackendChoice.BLOCK else [backend.train([task])[0] for task in tasks]
    if isinstance(backend, BlockBackend):
        assert backend._one_by_one is not None
        assert backend._one_by_one.programs, "the clients were trained together"
    return fits


def _case(name: str, make_federation: MakeFederation) -> tuple[Federation, Body]:
    shape, cropped = (2, 7, 7), Transform((0.3, 0.4), (0.5, 0.6), crop_padding=1, flip=True)
    federation = make_federation(RECORDS, input_shape=shape, transform=cropped if name == "residual" else Transform())
    return federation, build_body(name, BODIES[name], shape)


@pytest.mark.parametrize("moments", [AdamMoments.EPOCH, AdamMoments.RUN])
@pytest.mark.parametrize("method", ["fedlog", "fedavg"])  # with a frozen head, and with one that moves
@pytest.mark.parametrize("name", list(BODIES))
def test_clients_one_by_one_train_as_in_the_loop(
    name: str, method: str, moments: AdamMoments, instruction_set: str, make_federation: MakeFederation
) -> None:
    federation, body = _case(name, make_federation)
    rule = Optimiser(moments=moments, weight_decay=0.1)
    settings = Settings(batch_size=3, dtype=torch.float64, optimiser=rule)
    tasks = _tasks(federation, body, method, torch.float64)
    expected, found = (_train(federation, tasks, settings, c) for c in (BackendChoice.LOOP, BackendChoice.BLOCK))
    for task, one, other in zip(tasks, expected, found, strict=True):
        moved = any(not torch.equal(one.params[key], task.work.params[key]) for key in one.params)
        assert moved == (task.client.records > 0)
        for key in one.params:
            torch.testing.assert_close(other.params[key], one.params[key], rtol=1e-9, atol=1e-11)
        assert one.moments.keys() == other.moments.keys()
        assert bool(other.moments) == (moments is AdamMoments.RUN)
        for key in one.moments:
            torch.testing.assert_close(other.moments[key], one.moments[key], rtol=1e-9, atol=1e-11, check_dtype=False)


@pytest.mark.parametrize("name", list(BODIES))
def test_neither_the_group_nor_the_part_that_is_gathered_changes_a_bit(
    name: str, make_federation: MakeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, body = _case(name, make_federation)
    tasks = _tasks(federation, body, "fedlog", torch.float32)
    together = _train(federation, tasks, Settings(batch_size=3), BackendChoice.BLOCK)
    monkeypatch.setattr(chain_training, "GATHERED_NUMBERS", 1)  # one batch by each call
    alone = [_train(federation, [task], Settings(batch_size=3), BackendChoice.BLOCK)[0] for task in tasks[2:]]
    for one, other in zip(together[2:], alone, strict=True):
        assert all(torch.equal(one.params[key], other.params[key]) for key in one.params)


def test_numbers_that_are_not_finite_stay_visible(make_federation: MakeFederation) -> None:
    federation, body = _case("perceptron", make_federation)
    for bad in (float("nan"), float("inf")):
        tasks = _tasks(federation, body, "fedavg", torch.float32)
        tasks[0].work.params[HEAD][1, 0] = bad
        (fit, *_) = _train(federation, tasks, Settings(batch_size=3), BackendChoice.BLOCK)
        assert all(not bool(value.isfinite().all()) for value in fit.params.values())


def test_the_seconds_of_each_part_are_measured(make_federation: MakeFederation) -> None:
    federation, body = _case("perceptron", make_federation)
    CLOCK.read_and_reset()
    _train(federation, _tasks(federation, body, "fedlog", torch.float32), Settings(batch_size=3), BackendChoice.BLOCK)
    taken = CLOCK.read_and_reset()
    assert all(0 < taken[part] < 10 for part in ("gather", "forward", "backward", "optimiser"))


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_without_a_class_is_refused(label: int, make_federation: MakeFederation) -> None:
    federation, body = _case("perceptron", make_federation)
    tasks = _tasks(federation, body, "fedlog", torch.float32)
    federation.train.labels[tasks[3].client.train[2]] = label
    with pytest.raises(IndexError, match="expected labels from 0 to 2"):
        _train(federation, tasks, Settings(batch_size=3), BackendChoice.BLOCK)


def test_another_learning_rate_needs_no_other_program(make_federation: MakeFederation) -> None:
    federation, body = _case("perceptron", make_federation)
    settings = Settings(batch_size=3, optimiser=Optimiser(weight_decay=0.1))
    tasks = [_tasks(federation, body, "fedlog", torch.float32, rate) for rate in (0.002, 0.001)]
    backend = Engine(settings, BackendChoice.BLOCK).make_backends(federation, [task.client for task in tasks[0]])[
        body.name
    ]
    assert isinstance(backend, BlockBackend)
    assert backend._one_by_one is not None
    counts = []
    for each in tasks:
        backend.train(each)
        counts.append(len(backend._one_by_one.programs))
    assert counts == [3, 3]  # batches of three, two and one
