"""The choice among backends: measured once, remembered on the machine, written down by the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from fedlog.data.federation import Federation
from fedlog.engine.clients import Client
from fedlog.engine.training import speed_trial
from fedlog.engine.training.backends import Engine, read_decisions
from fedlog.engine.training.tasks import Settings
from fedlog.models.body import Body, build_body
from fedlog.models.catalog import make_body
from fedlog.settings.execution import BackendChoice

MakeFederation = Callable[..., Federation]


@pytest.fixture(autouse=True)
def _own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOG_CACHE", str(tmp_path))


def _normed() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


def _clients(federation: Federation, found: Body) -> list[Client]:
    return [Client(at, s.name, found, s.train, (s.test,), ()) for at, s in enumerate(federation.shards)]


def _counting(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> list[list[str]]:
    calls: list[list[str]] = []

    def pretend(body: Any, clients: Any, settings: Any, n_class: int, backends: dict[str, Any]) -> dict[str, float]:
        calls.append(list(backends))
        return seconds

    monkeypatch.setattr(speed_trial, "_run_trial", pretend)
    return calls


def test_a_real_trial_times_every_backend_and_leaves_its_figures(make_federation: MakeFederation) -> None:
    federation = make_federation([7, 0, 3], input_shape=(1, 4, 4))
    found = build_body("mine:normed", _normed, (1, 4, 4))
    engine = Engine(Settings(3)).choose_backends(federation, _clients(federation, found))
    (seconds,) = json.loads(speed_trial.locate_cache_file().read_text()).values()
    assert set(seconds) == {"block", "vmap", "loop"}
    assert all(0 < one < 10 for one in seconds.values())
    near = [kind for kind in ("block", "vmap", "loop") if seconds[kind] <= 1.1 * min(seconds.values())]
    assert engine.name_backends() == {"mine:normed": near[0]}
    assert "fastest in a trial, ms a batch: block" in engine.explain(found)


@pytest.mark.parametrize("fastest", ["block", "vmap", "loop"])
def test_the_fastest_is_taken_and_measured_once(
    fastest: str, make_federation: MakeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation([7, 3], input_shape=(1, 4, 4))
    found = build_body("mine:normed", _normed, (1, 4, 4))
    calls = _counting(monkeypatch, {kind: 0.1 if kind == fastest else 0.2 for kind in ("block", "vmap", "loop")})
    for _ in range(2):
        engine = Engine(Settings(3)).choose_backends(federation, _clients(federation, found))
        assert engine.name_backends() == {"mine:normed": fastest}
    assert calls == [["block", "vmap", "loop"]]
    Engine(Settings(4)).choose_backends(federation, _clients(federation, found))  # another batch size: another question
    assert len(calls) == 2
    other = {"block": "loop", "vmap": "block", "loop": "vmap"}[fastest]
    resumed = Engine(Settings(3), decisions=read_decisions({"mine:normed": other}))
    assert resumed.choose_backends(federation, _clients(federation, found)).name_backends() == {"mine:normed": other}


class _Residual(nn.Module):
    """Two convolutions and a norm, with or without an addition that the module's text does not show."""

    def __init__(self, adds: bool) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4)
        self.adds = adds

    def forward(self, inputs: Tensor) -> Tensor:
        maps = self.first(inputs)
        found: Tensor = self.norm(self.second(maps) + maps if self.adds else self.second(maps))
        return found.flatten(1)


def test_bodies_that_differ_in_their_forward_pass_alone_are_measured_apart(
    make_federation: MakeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation([7, 3], input_shape=(1, 4, 4))
    calls = _counting(monkeypatch, dict.fromkeys(("block", "vmap", "loop"), 0.1))
    for adds in (True, False, True):
        found = build_body("mine", lambda adds=adds: _Residual(adds), (1, 4, 4))
        Engine(Settings(3)).choose_backends(federation, _clients(federation, found))
    assert len(calls) == 2


@pytest.mark.parametrize("damaged", [7, [], {}, {"block": "fast", "vmap": 0.1, "loop": 0.1}])
def test_a_damaged_entry_of_the_cache_is_measured_again(
    damaged: object, make_federation: MakeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation([7, 3], input_shape=(1, 4, 4))
    found = build_body("mine:normed", _normed, (1, 4, 4))
    calls = _counting(monkeypatch, dict.fromkeys(("block", "vmap", "loop"), 0.1))
    Engine(Settings(3)).choose_backends(federation, _clients(federation, found))
    cache = speed_trial.locate_cache_file()
    cache.write_text(json.dumps(dict.fromkeys(json.loads(cache.read_text()), damaged)))
    assert Engine(Settings(3)).choose_backends(federation, _clients(federation, found)).name_backends()
    assert len(calls) == 2


def test_the_papers_bodies_are_never_put_on_trial(
    make_federation: MakeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _counting(monkeypatch, {})
    for name, shape in (("cnn", (1, 28, 28)), ("cnn", (3, 32, 32)), ("mlp:6,5", (4,)), ("signal-cnn", (3, 40))):
        federation, found = make_federation([4, 4], input_shape=shape), make_body(name, shape)
        assert Engine().choose_backends(federation, _clients(federation, found)).name_backends() == {name: "block"}
    assert not calls


def test_a_recorded_backend_that_cannot_be_used_is_decided_anew(make_federation: MakeFederation) -> None:
    federation, found = make_federation([4, 4]), make_body("mlp:6,5", (4,))
    engine = Engine(decisions=read_decisions({"mlp:6,5": BackendChoice.MIXED.value}))
    assert engine.choose_backends(federation, _clients(federation, found)).name_backends() == {"mlp:6,5": "block"}


def test_blocks_are_taken_where_the_trial_cannot_tell(
    make_federation: MakeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation([7, 3], input_shape=(1, 4, 4))
    found = build_body("mine:normed", _normed, (1, 4, 4))
    for vmap, expected in ((0.95, "block"), (0.85, "vmap")):
        monkeypatch.setattr(speed_trial, "measure_backends", lambda *_, v=vmap: {"block": 1.0, "vmap": v, "loop": 3.0})
        engine = Engine(Settings(3)).choose_backends(federation, _clients(federation, found))
        assert engine.name_backends() == {"mine:normed": expected}
