"""Differences, own rows and skipped uploads on real processes give the head and the bits of the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from three_sites import BODIES, SCHEMA, simulation, write_table

from fedlog.engine.protocol import checkpoint
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite
from fedlog.flower.protocol.plan import Plan, check_plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.models.body import HEAD
from fedlog.settings.training import BroadcastForm, HeadRows

pytestmark = pytest.mark.slow

CLASSES = {"east": (0, 1), "north": (1, 2), "south": (0, 2)}


def test_real_processes_send_what_the_simulator_sends(tmp_path: Path) -> None:
    plan = check_plan(
        Plan(
            "trial",
            options={"epochs": 2, "learning_rate": 0.01},
            rounds=4,
            seed=4,
            codec="rows+q8",
            codec_down="rows+q4",
            down=BroadcastForm.DIFFERENCES,
            world=HeadRows.CLOSED,
            skip_below=0.3,
        )
    )
    tables = {name: write_table(tmp_path / f"{name}.csv", name, classes=CLASSES[name]) for name in BODIES}
    sites = {name: LocalSite(tables[name], body) for name, body in BODIES.items()}
    (tmp_path / "federation").mkdir()
    federation = LocalFederation.create(tmp_path / "federation", SCHEMA, sites)
    for folder in federation.sites.values():
        folder.write_config(replace(folder.read_config(), world="closed"))
    outcome = federation.run(plan, lambda line: None)
    simulated = simulation(list(federation.sites.values()), plan)
    records = list(simulated.rounds())
    found = checkpoint.read(RunFolder.of_run(federation.server, "trial").checkpoint, lambda _: None)
    torch.testing.assert_close(found.values[HEAD], simulated.server.state[HEAD], rtol=1e-6, atol=1e-7)
    assert found.ledger.entries == simulated.server.ledger.entries
    assert any(name.startswith("same") for record in records for name in record.bits_by_kind)
    accuracies = {site["name"]: site["federated_accuracy"] for site in outcome.report["sites"]}
    assert list(accuracies.values()) == pytest.approx(records[-1].accuracy_per_client)
