"""Rounds with only some clients: FedLog's head is that of the last statistics of all clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlog.algorithms.registry import make_method
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.core.stats import Statistics
from fedlog.data.federation import Federation
from fedlog.engine.clients import make_model_plan
from fedlog.engine.protocol.cohort import Cohort
from fedlog.engine.simulate.secure_sums import SecureSums
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.experiments.run.execute import execute
from fedlog.models.body import HEAD
from fedlog.models.catalog import make_body
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import RunSettings

MakeFederation = Callable[..., Federation]


def _simulation(federation: Federation, method: str = "fedlog", **told: Any) -> Simulation:
    bodies = [make_body("mlp:6,5", federation.input_shape)] * len(federation.shards)
    plan = make_model_plan(federation, bodies)
    algorithm = make_method(method, plan, {"epochs": 1, "learning_rate": 0.01})
    course = RunSettings(rounds=4, participation=0.4)
    return Simulation(algorithm, federation, bodies, plan, Engine(Settings(4)), course, **told).start()


@pytest.mark.parametrize(("method", "heard_of_in_round_1"), [("fedlog", 2), ("fedlog-c", 5)])  # fedlog-c has an opening
def test_the_head_is_that_of_everyones_last_statistics(
    method: str, heard_of_in_round_1: int, make_federation: MakeFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    last: dict[int, Tensor] = {}
    working = Cohort.make_encoded_uploads

    def noted(self: Cohort, number: int, exchange: Any, indices: Any) -> list[tuple[int, bytes | None]]:
        sent = working(self, number, exchange, indices)
        last.update(
            {i: self._transport.upload_codec.decode(blob).arrays[0].double() for i, blob in sent if blob is not None}
        )
        return sent

    monkeypatch.setattr(Cohort, "make_encoded_uploads", noted)
    simulation = _simulation(make_federation([9, 4, 7, 12, 6]), method)
    seen = []
    for record in simulation.rounds():
        expected = sum(last.values(), torch.zeros(3, 6, dtype=torch.float64))
        torch.testing.assert_close(simulation.server.state["statistics"], expected, rtol=0, atol=1e-9)
        head = solve_head(Prior(nu=1.0).posterior(Statistics(expected))).weights
        torch.testing.assert_close(simulation.server.state[HEAD].double(), head.double(), rtol=0, atol=1e-9)
        seen.append((record.participants, len(last)))
    assert seen[0] == (2, heard_of_in_round_1)
    assert seen[-1][1] > 2


def test_participants_without_records_leave_the_head_as_it_is(make_federation: MakeFederation) -> None:
    simulation = _simulation(make_federation([0, 0, 0, 0, 8], tests=[2, 2, 2, 2, 2]))
    heads = [simulation.server.state.get(HEAD) for _ in simulation.rounds()]
    taking_part = [4 in simulation.draw_participants(number) for number in (1, 2, 3, 4)]
    assert not all(taking_part)
    assert any(taking_part)
    first = taking_part.index(True)
    assert all(head is None for head in heads[:first])
    for head, moved, before in zip(heads[first + 1 :], taking_part[first + 1 :], heads[first:], strict=False):
        assert head is not None
        assert before is not None
        assert bool(head.any())
        assert moved or torch.equal(head, before)


def test_a_secure_sum_has_no_memory_of_who_was_in_it(make_federation: MakeFederation) -> None:
    federation = make_federation([9, 4, 7, 12, 6, 5, 8, 7, 9, 10])
    assert _simulation(federation).server.memory == {}
    assert _simulation(federation, secure=SecureSums()).server.memory is None
    assert _simulation(federation, "fedavg").server.memory is None


def test_half_the_clients_a_round_are_enough_to_learn(tmp_path: Any) -> None:
    summary = execute(RunSpec(data="digits", rounds=10, participation=0.5), tmp_path / "run")
    assert summary.accuracy_mean_over_clients > 0.85
