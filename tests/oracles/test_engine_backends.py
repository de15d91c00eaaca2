"""The stacked backends against the loop on the paper's own networks: dropout, crops, padding, whole runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlog.algorithms.interface import Batch, cross_entropy
from fedlog.algorithms.registry import make_method
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.data.transforms import Transform
from fedlog.engine.clients import list_clients, make_model_plan
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.dp_sgd import check_body
from fedlog.engine.training.tasks import Backend, FeatureRequest, RecordPool, Settings, Task
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Body, build_body, draw_initial_head
from fedlog.models.catalog import make_body
from fedlog.settings.execution import BackendChoice
from fedlog.settings.training import RunSettings

MakeFederation = Callable[..., Federation]

CASES = {
    "mnist": ("cnn", (1, 28, 28), Transform((0.1,), (0.5,))),
    "cifar, cropped and flipped": ("cnn", (3, 32, 32), Transform((0.5,) * 3, (0.25,) * 3, crop_padding=4, flip=True)),
    "cifar, flexible": ("cnn-small", (3, 32, 32), Transform()),
    "signals": ("signal-cnn", (3, 40), Transform()),
    "table": ("mlp:6,5", (4,), Transform()),
}


def _tasks(algorithm: Any, federation: Federation, found: Body) -> list[Task]:
    start = {HEAD: draw_initial_head(found.width, federation.n_class, Key(1)), **found.make_initial_params(Key(1))}
    home = algorithm.join({name: value.double() for name, value in start.items()})
    received = {
        name: value.double()
        for name, value in algorithm.receive(algorithm.broadcast(algorithm.begin(Key(1))), {}).items()
    }
    exchange = algorithm.schedule.round[0]
    work = algorithm.start_exchange(exchange.name, home, received)
    clients = list_clients(federation, [found] * len(federation.shards), algorithm)
    return [Task(c, work, exchange.phases, Key(2).child(c.name)) for c in clients]


@pytest.mark.parametrize(
    ("case", "choice", "method"),
    # FedProx's loss reads the parameters themselves.
    [
        (case, choice, method)
        for method in ("fedlog", "fedprox")
        for case in CASES
        for choice in (BackendChoice.BLOCK, BackendChoice.VMAP)
        if method == "fedlog" or case == "mnist"
    ],
)
def test_a_stacked_backend_trains_what_the_loop_trains(
    case: str, choice: BackendChoice, method: str, make_federation: MakeFederation
) -> None:
    """Clients of 5, 0, 1 and 8 records in batches of 3, in chunks of 3: short batches, padding, an empty client."""
    name, shape, transform = CASES[case]
    found = make_body(name, shape)
    federation = make_federation([5, 0, 1, 8], tests=[2, 3, 1, 2], input_shape=shape, transform=transform)
    algorithm = make_method(method, make_model_plan(federation, [found] * 4), {"epochs": 2, "learning_rate": 0.002})
    tasks = _tasks(algorithm, federation, found)
    settings = Settings(batch_size=3, dtype=torch.float64)
    loop, stacked = (
        _backend(Engine(settings, c, clients_at_once=3), federation, tasks) for c in (BackendChoice.LOOP, choice)
    )
    expected = [fit.params for fit in loop.train(tasks)]
    trained = [fit.params for start in (0, 3) for fit in stacked.train(tasks[start : start + 3])]
    for task, one, other in zip(tasks, expected, trained, strict=True):
        moved = any(not torch.equal(one[key], task.work.params[key]) for key in one)
        assert moved == (task.client.records > 0)
        for key in one:
            torch.testing.assert_close(other[key], one[key], rtol=1e-9, atol=1e-11)
    for pool, positions in ((RecordPool.TRAIN, "train"), (RecordPool.TEST, "tests")):
        requests = [
            FeatureRequest(t.client, model, pool, t.client.train if positions == "train" else t.client.tests[0])
            for t, model in zip(tasks, expected, strict=True)
        ]
        seen = [f for start in (0, 3) for f in stacked.compute_features(requests[start : start + 3])]
        for one, other in zip(loop.compute_features(requests), seen, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-11)


def _make_alpha_body(activation: type[nn.Module]) -> nn.Module:
    """Alpha dropout of channels, of units, and between features and head."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), activation(), nn.FeatureAlphaDropout(0.3), nn.Flatten()),
        *(nn.Linear(64, 6), nn.ReLU(), nn.AlphaDropout(0.4), nn.Linear(6, 5), nn.AlphaDropout(0.2)),
    )


def _make_plain_body_with_alpha_dropout() -> nn.Module:
    """A plain body, whose gradient of cross-entropy is written out, but for the alpha dropout at its end."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 5), nn.AlphaDropout(0.4))


@pytest.mark.parametrize(
    ("make", "choice"),
    [
        (partial(_make_alpha_body, nn.SELU), BackendChoice.BLOCK),
        (partial(_make_alpha_body, nn.Softsign), BackendChoice.MIXED),
        (partial(_make_alpha_body, nn.Softsign), BackendChoice.VMAP),
        (_make_plain_body_with_alpha_dropout, BackendChoice.BLOCK),
    ],
)
@pytest.mark.parametrize("method", ["fedlog", "fedprox"])
def test_alpha_dropout_trains_the_same_in_all_backends(
    make: Callable[[], nn.Module], choice: BackendChoice, method: str, make_federation: MakeFederation
) -> None:
    found = build_body("mine", make, (1, 4, 4))
    federation = make_federation([5, 0, 1, 8], input_shape=(1, 4, 4))
    algorithm = make_method(method, make_model_plan(federation, [found] * 4), {"epochs": 2, "learning_rate": 0.002})
    tasks = _tasks(algorithm, federation, found)
    tasks.sort(key=lambda task: -task.client.records)
    settings = Settings(batch_size=3, dtype=torch.float64)
    expected, trained = (
        [fit.params for fit in _backend(Engine(settings, one), federation, tasks).train(tasks)]
        for one in (BackendChoice.LOOP, choice)
    )
    for one, other in zip(expected, trained, strict=True):
        for key in one:
            torch.testing.assert_close(other[key], one[key], rtol=1e-9, atol=1e-11)


class _Twice(nn.Module):
    """One linear layer in two places of a plain body."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.linear(torch.relu(self.linear(inputs)))
        return found


class _Repeated(nn.Module):
    """A convolution and a norm that are called twice, between layers that are called once."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU())
        self.last = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 5))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.last(self.block(self.block(self.first(inputs))))
        return found


@pytest.mark.parametrize("method", ["fedlog", "fedprox"])
@pytest.mark.parametrize(("make", "shape"), [(_Twice, (6,)), (_Repeated, (1, 4, 4))])
def test_gradients_of_a_layer_that_is_called_twice_are_added_up(
    make: Callable[[], nn.Module], shape: tuple[int, ...], method: str, make_federation: MakeFederation
) -> None:
    found = build_body("mine", make, shape)
    federation = make_federation([5, 3], input_shape=shape)
    algorithm = make_method(method, make_model_plan(federation, [found] * 2), {"epochs": 2, "learning_rate": 0.002})
    tasks = _tasks(algorithm, federation, found)
    settings = Settings(batch_size=3, dtype=torch.float64)
    expected, trained = (
        [fit.params for fit in _backend(Engine(settings, choice), federation, tasks).train(tasks)]
        for choice in (BackendChoice.LOOP, BackendChoice.BLOCK)
    )
    for one, other in zip(expected, trained, strict=True):
        for key in one:
            torch.testing.assert_close(other[key], one[key], rtol=1e-9, atol=1e-11)


class _Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.other(torch.tanh(self.one(inputs)))
        return found


def test_a_shared_parameter_is_stacked_by_vmap_and_refused_by_blocks_and_dp_sgd(
    make_federation: MakeFederation,
) -> None:
    found = build_body("mine", _Tied, (4,))
    federation = make_federation([5, 3])
    options = {"epochs": 2, "learning_rate": 0.002}
    algorithm = make_method("fedprox", make_model_plan(federation, [found] * 2), options)
    tasks = _tasks(algorithm, federation, found)
    settings = Settings(batch_size=3, dtype=torch.float64)
    expected, trained = (
        [fit.params for fit in _backend(Engine(settings, choice), federation, tasks).train(tasks)]
        for choice in (BackendChoice.LOOP, BackendChoice.VMAP)
    )
    for one, other in zip(expected, trained, strict=True):
        assert "other.weight" not in one
        for key in one:
            torch.testing.assert_close(other[key], one[key], rtol=1e-9, atol=1e-11)
    with pytest.raises(InputError, match=r"one.weight and other.weight are one shared parameter"):
        _backend(Engine(settings, BackendChoice.BLOCK), federation, tasks)
    with pytest.raises(InputError, match=r"one.weight and other.weight are one shared parameter"):
        check_body(found)


def _backend(engine: Engine, federation: Federation, tasks: list[Task]) -> Backend:
    return engine.make_backends(federation, [task.client for task in tasks])[tasks[0].client.body.name]


@pytest.mark.parametrize("case", ["mnist", "cifar, cropped and flipped"])
def test_chunks_of_equal_clients_of_any_size_give_the_same_bits(case: str, make_federation: MakeFederation) -> None:
    name, shape, transform = CASES[case]
    found = make_body(name, shape)
    federation = make_federation([8] * 5, tests=[3] * 5, input_shape=shape, transform=transform)
    algorithm = make_method("fedlog", make_model_plan(federation, [found] * 5), {"epochs": 2, "learning_rate": 0.002})
    tasks = _tasks(algorithm, federation, found)
    backend = _backend(Engine(Settings(batch_size=3), BackendChoice.BLOCK), federation, tasks)
    whole = [fit.params for fit in backend.train(tasks)]
    parts = [fit.params for start in (0, 2, 4) for fit in backend.train(tasks[start : start + 2])]
    for one, other in zip(whole, parts, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("name", "last", "expected"),
    [("cnn", 5, 25), ("cnn", 6, 8), ("mlp:700,700", 5, 8)],  # the last would need much memory
)
def test_chunks_are_larger_if_all_clients_have_equally_many_records(
    name: str, last: int, expected: int, make_federation: MakeFederation
) -> None:
    found = make_body(name, (1, 28, 28))
    federation = make_federation([5, 5, last], input_shape=(1, 28, 28))
    algorithm = make_method("fedlog", make_model_plan(federation, [found] * 3), {})
    tasks = _tasks(algorithm, federation, found)
    backend = _backend(Engine(Settings(batch_size=50), BackendChoice.BLOCK), federation, tasks)
    assert backend.clients_at_once == expected


@pytest.mark.parametrize("method", ["fedlog", "fedlog-c", "fedavg", "ditto"])
def test_whole_runs_agree_whichever_backend_computes_them(method: str, make_federation: MakeFederation) -> None:
    """Three rounds through messages of float32: the same models up to their rounding."""
    found = make_body("mlp:6,5", (4,))
    federation = make_federation([9, 4, 1, 7, 12])
    bodies = [found] * 5
    plan = make_model_plan(federation, bodies)
    algorithm = make_method(method, plan, {"epochs": 2, "learning_rate": 0.01})
    homes = {}
    for choice in (BackendChoice.LOOP, BackendChoice.BLOCK, BackendChoice.VMAP):
        engine = Engine(Settings(batch_size=4, dtype=torch.float64), choice, clients_at_once=2)
        simulation = Simulation(algorithm, federation, bodies, plan, engine, RunSettings(rounds=3)).start()
        records = list(simulation.rounds())
        homes[choice] = simulation.workers.cohort.store.homes, [record.correct_per_client for record in records]
    for choice in (BackendChoice.BLOCK, BackendChoice.VMAP):
        assert homes[choice][1] == homes[BackendChoice.LOOP][1]
        for client, home in homes[BackendChoice.LOOP][0].items():
            for name, value in home.items():
                torch.testing.assert_close(homes[choice][0][client][name], value, rtol=1e-4, atol=1e-5)


def test_the_choice_is_explained_and_an_impossible_one_refused() -> None:
    normalised, plain = make_body("mobilenet-v2", (3, 32, 32)), make_body("mlp:4", (4,))
    assert "blocks" in Engine().explain(plain)
    assert "layer 1 (BatchNorm2d) lets the records of a batch affect each other" in Engine().explain(normalised)
    assert "as --backend loop asks for" in Engine(choice=BackendChoice.LOOP).explain(plain)
    assert Engine(choice=BackendChoice.VMAP).explain(plain).endswith("through vmap, as --backend vmap asks for")
    for choice in (BackendChoice.BLOCK, BackendChoice.VMAP):
        with pytest.raises(InputError, match="body mobilenet-v2"):
            Engine(choice=choice).explain(normalised)


class _Centred(nn.Linear):
    """A layer in which the records of a batch affect each other."""

    def forward(self, inputs: Tensor) -> Tensor:
        found = super().forward(inputs)
        return found - found.mean(0) if self.training else found


class _Tokens(nn.Embedding):
    """A body whose records are places in a table."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.long()).flatten(1)


class _Root(nn.Linear):
    """A body whose records are never negative."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs.sqrt())


def test_a_body_that_vmap_runs_only_in_evaluation_is_not_stacked_through_it() -> None:
    body = build_body("mine", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)), (4,))
    assert "vmap cannot run it" in Engine().explain(body)
    with pytest.raises(InputError, match="vmap cannot run it"):
        Engine(choice=BackendChoice.VMAP).explain(body)


class _Untraced(nn.Module):
    """Two linear layers, the first one outside of autograd or with a gradient of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(4, 6), nn.Linear(6, 5), kind

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.last(self._compute_units(inputs))
        return found

    def _compute_units(self, inputs: Tensor) -> Tensor:
        if self.kind == "no_grad":
            with torch.no_grad():
                return torch.relu(self.first(inputs))
        units: Tensor = self.first(inputs)
        if self.kind == "function":
            return _Passed.apply(units)  # type: ignore[no-untyped-call, no-any-return]
        if units.requires_grad:
            units.register_hook(lambda gradient: gradient.flip(1))
        return units


class _Passed(torch.autograd.Function):
    """The sign, with the gradient of its input's tanh."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return torch.sign(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        return gradient * (1 - inputs.tanh().square())


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("no_grad", "stacked clients through vmap"),
        ("function", "vmap cannot run it"),
        ("hook", "vmap gives other gradients than the loop"),
    ],
)
def test_a_body_whose_gradients_stacking_would_miss_is_not_stacked(kind: str, why: str) -> None:
    body = build_body("mine", lambda: _Untraced(kind), (4,))
    assert why in Engine().explain(body)
    with pytest.raises(InputError, match="mine cannot be stacked in blocks: blocks would gain nothing, or do not"):
        Engine(choice=BackendChoice.BLOCK).explain(body)


class _Recurrent(nn.Module):
    """An LSTM, which no block covers and `vmap` cannot run, before a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.last(self.cells(inputs.unflatten(1, (2, 2)))[0][:, -1])
        return found


class _Attentive(nn.Module):
    """Attention, which `vmap` runs client by client, before a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(2, 1, batch_first=True), nn.Linear(2, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        steps = inputs.unflatten(1, (2, 2))
        found: Tensor = self.last(self.attention(steps, steps, steps, need_weights=False)[0].mean(1))
        return found


class _Data(nn.Module):
    """An operation that `vmap` refuses while it runs what `torch.fx` has traced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.last(self.first(inputs).data)
        return found


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (_Recurrent, "cells (LSTM), unflatten, getitem and 1 more"),
        (_Attentive, "attention (MultiheadAttention), unflatten, getitem and 1 more"),
        (_Data, "getattr_1"),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 3)), "1 (PReLU)"),
    ],
)
def test_layers_without_a_block_are_named_and_tried_without_a_word(
    make: Callable[[], nn.Module], named: str, capfd: pytest.CaptureFixture[str]
) -> None:
    said = Engine().explain(build_body("mine", make, (4,)))
    assert said == f"body mine: stacked clients in specialised blocks, except for {named}: not every layer has a block"
    assert not "".join(capfd.readouterr())


def test_a_frozen_layer_without_autograd_keeps_its_block() -> None:
    def make() -> nn.Module:
        module = _Untraced("no_grad")
        module.first.requires_grad_(False)
        return module

    assert "specialised blocks" in Engine().explain(build_body("mine", make, (4,)))


@pytest.mark.parametrize("make", [lambda: _Tokens(7, 2), lambda: _Root(4, 6)])
def test_what_is_tried_is_within_the_domain_of_usual_bodies(make: Callable[[], nn.Module]) -> None:
    assert "stacked clients through vmap" in Engine().explain(build_body("mine", make, (4,)))


@pytest.mark.parametrize(
    ("make", "layer"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False)), "layer 1 (BatchNorm1d)"),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), _Centred(6, 6), nn.ReLU()), "layer 2 (_Centred)"),
    ],
)
def test_records_that_see_each_other_are_never_padded(
    make: Callable[[], nn.Module], layer: str, make_federation: MakeFederation
) -> None:
    found = build_body("mine:mixing", make, (4,))
    said = f"{layer} lets the records of a batch affect each other"
    assert Engine().explain(found) == f"body mine:mixing: one client after another: {said}"
    with pytest.raises(InputError, match=f"body mine:mixing cannot be stacked: {re.escape(said)}"):
        Engine(choice=BackendChoice.VMAP).explain(found)
    federation = make_federation([6, 3, 8])
    plan = make_model_plan(federation, [found] * 3)
    algorithm = make_method("fedlog", plan, {"epochs": 2, "learning_rate": 0.01})
    homes = []
    for choice in (BackendChoice.LOOP, BackendChoice.AUTO):
        engine = Engine(Settings(batch_size=4), choice)
        simulation = Simulation(algorithm, federation, [found] * 3, plan, engine, RunSettings(rounds=2)).start()
        list(simulation.rounds())
        homes.append(simulation.workers.cohort.store.homes)
    for client, home in homes[0].items():
        assert all(torch.equal(homes[1][client][name], value) for name, value in home.items())


@pytest.mark.parametrize("choice", [BackendChoice.LOOP, BackendChoice.VMAP])
def test_a_client_without_records_does_not_need_a_body_that_takes_none(
    choice: BackendChoice, make_federation: MakeFederation
) -> None:
    make = lambda: nn.Sequential(nn.Conv2d(1, 1, 1), nn.InstanceNorm2d(1, affine=True), nn.Flatten())  # noqa: E731
    found = build_body("mine", make, (1, 2, 2))
    federation = make_federation([3, 0], tests=[2, 0], input_shape=(1, 2, 2))
    algorithm = make_method("fedlog", make_model_plan(federation, [found] * 2), {})
    tasks = _tasks(algorithm, federation, found)
    backend = _backend(Engine(Settings(batch_size=3), choice), federation, tasks)
    trained = [fit.params for task in tasks for fit in backend.train([task])]
    requests = [
        FeatureRequest(t.client, p, RecordPool.TRAIN, t.client.train) for t, p in zip(tasks, trained, strict=True)
    ]
    assert [one.shape for request in requests for one in backend.compute_features([request])] == [(3, 4), (0, 4)]


@pytest.mark.parametrize("choice", [BackendChoice.LOOP, BackendChoice.BLOCK, BackendChoice.VMAP])
def test_losses_see_the_features_whole_and_the_scores_behind_the_dropout(
    choice: BackendChoice, make_federation: MakeFederation
) -> None:
    """FedLog-C's distances, FedProto's and FedDBE's terms would otherwise carry the variance of the dropout."""
    seen: list[Batch] = []

    def noting(batch: Batch, constants: Any, carry: Any) -> Any:
        seen.append(batch)
        return cross_entropy(batch, constants, carry)

    found = build_body("signed", lambda: nn.Sequential(nn.Linear(4, 9), nn.Dropout(0.5)), (4,))
    federation = make_federation([6, 6])
    algorithm = make_method("fedlog", make_model_plan(federation, [found] * 2), {"epochs": 1})
    phases = tuple(replace(phase, loss=noting) for phase in algorithm.schedule.round[0].phases)
    tasks = [replace(task, phases=phases) for task in _tasks(algorithm, federation, found)]
    _backend(Engine(Settings(batch_size=6, dtype=torch.float64), choice), federation, tasks).train(tasks)
    head = tasks[0].work.params[HEAD]
    assert seen
    for batch in seen:
        features = batch.features.detach()
        assert bool((features != 0).all())
        whole = features @ head[:, 1:].T + head[:, 0]
        assert not torch.allclose(batch.logits.detach(), whole)


@pytest.mark.parametrize("numbers", [1, 2**23])
def test_clients_evaluated_in_smaller_groups_have_the_same_features(
    numbers: int, make_federation: MakeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedlog.engine.training.backends.EVALUATION_NUMBERS", numbers)
    make = lambda: nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.GroupNorm(3, 3), nn.Flatten(), nn.Linear(48, 4))  # noqa: E731
    found = build_body("mine:normed", make, (1, 4, 4))
    federation = make_federation([5, 0, 60, 8], tests=[2, 3, 70, 0], input_shape=(1, 4, 4))
    algorithm = make_method("fedlog", make_model_plan(federation, [found] * 4), {})
    tasks = _tasks(algorithm, federation, found)
    settings = Settings(batch_size=3, dtype=torch.float64)
    loop, stacked = (
        _backend(Engine(settings, c), federation, tasks) for c in (BackendChoice.LOOP, BackendChoice.BLOCK)
    )
    models = [{name: value * (1 + at) for name, value in t.work.params.items()} for at, t in enumerate(tasks)]
    requests = [
        FeatureRequest(t.client, m, RecordPool.TEST, t.client.tests[0]) for t, m in zip(tasks, models, strict=True)
    ]
    for one, other in zip(loop.compute_features(requests), stacked.compute_features(requests), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-11)
