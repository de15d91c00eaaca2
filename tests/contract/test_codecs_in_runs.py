"""Every method runs with every codec: `rows` changes no bit of any model, and a resumed run sends the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from fedlog.algorithms.registry import METHODS
from fedlog.engine.simulate.simulator import Simulation

if TYPE_CHECKING:
    from tests.contract.conftest import Small

SIZES = [6, 9, 5]


def _run(small: Small, method: str, codec: str) -> tuple[dict[str, dict[str, torch.Tensor]], list[int]]:
    simulation = small.simulation(method, small.federation(SIZES, one_class=[1]), codec=codec)
    bits = [record.bits_up for record in simulation.rounds()]
    return small.models(simulation), bits


@pytest.mark.parametrize("method", METHODS)
def test_rows_give_the_same_models_bit_by_bit(small: Small, method: str) -> None:
    dense, bits = _run(small, method, "f32")
    rows, fewer = _run(small, method, "rows")
    for client, model in dense.items():
        for name, value in model.items():
            assert value.numpy().tobytes() == rows[client][name].numpy().tobytes(), (client, name)
    assert fewer[-1] <= bits[-1]


@pytest.mark.parametrize("method", METHODS)
def test_small_formats_carry_every_method(small: Small, method: str) -> None:
    dense, bits = _run(small, method, "f32")
    found, fewer = _run(small, method, "rows+q8+zstd")
    assert found.keys() == dense.keys()
    assert all(bool(torch.isfinite(value).all()) for model in found.values() for value in model.values())
    assert fewer[-1] < bits[-1] or not bits[-1]


@pytest.mark.parametrize("method", ["fedlog", "fedlog-c", "fedavg", "fedproto"])
def test_a_resumed_run_rounds_as_one_that_was_never_stopped(small: Small, method: str, tmp_path: Path) -> None:
    def new() -> Simulation:
        return small.simulation(method, small.federation(SIZES), codec="q4", rounds=3)

    whole = new()
    list(whole.rounds())
    stopped = new()
    going = stopped.rounds()
    next(going)
    stopped.save(tmp_path / "checkpoint")
    resumed = new()
    resumed.resume(tmp_path / "checkpoint")
    list(resumed.rounds())
    expected, found = small.models(whole), small.models(resumed)
    for client, model in expected.items():
        for name, value in model.items():
            assert torch.equal(value, found[client][name]), (client, name)
