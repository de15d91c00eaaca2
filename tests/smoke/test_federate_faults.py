"""Runs of real processes on the loopback: the simulator's numbers, and what happens when a process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from loopback_sites import OPTIONS, PATIENCE, Federation, kill_tree, started, when
from safetensors.torch import load_file
from three_sites import BODIES, assert_tells_nothing_of, simulation

from fedlog.engine.protocol import checkpoint
from fedlog.errors import RunError
from fedlog.flower.folders.site_folder import RunCaps
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.models.body import HEAD
from fedlog.models.model_folder import load_model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with started(tmp_path_factory.mktemp("federation"), *BODIES) as federation:
        yield federation


def test_real_processes_compute_what_the_simulator_computes(federation: Federation, tmp_path: Path) -> None:
    plan = Plan("equal", rounds=2, options=OPTIONS, seed=3)
    report = federation.run(plan, minimum=3, deadline=240.0)
    simulated = simulation(federation.sites.values(), plan)
    records = list(simulated.rounds())
    simulated.save_models(tmp_path)
    state = checkpoint.read(RunFolder.of_run(federation.server, "equal").checkpoint, lambda _: None)
    for name in ("statistics", "head"):
        torch.testing.assert_close(state.values[name], simulated.server.state[name], rtol=1e-6, atol=1e-7)
    assert [site["federated_accuracy"] for site in report["sites"]] == pytest.approx(records[-1].accuracy_per_client)
    for name, folder in federation.sites.items():
        model = load_model(folder.models / "equal")
        if model.provenance["kept"] == "federated":
            for entry, value in load_file(tmp_path / f"{name}.safetensors").items():
                torch.testing.assert_close(model.params[entry], value, rtol=1e-5, atol=1e-6)


def test_a_site_killed_in_mid_round_goes_on_with_its_own_body(federation: Federation) -> None:
    # So many epochs that the kill comes while the site trains: more than a site allows by itself.
    for site in federation.sites.values():
        site.write_config(replace(site.read_config(), caps=RunCaps(epochs=800)))
    plan = Plan("killed-site", rounds=5, options={**OPTIONS, "epochs": 800})
    log = federation.running["east"].log
    before = log.stat().st_size
    trained: list[int] = []

    def training_in_round_two() -> bool:
        return b"ROUND 2]" in log.read_bytes()[before:]

    def kill_and_restart() -> None:
        time.sleep(0.5)
        kill_tree(federation.running["east"])
        trained.extend(event["round"] for event in federation.site_events("east", "worked", plan.name))
        federation.start_site("east")

    with when(training_in_round_two, kill_and_restart):
        report = federation.run(plan, minimum=2, deadline=100.0)
    assert trained == [1]  # the second round's work was cut off
    assert [site["name"] for site in report["sites"]] == ["east", "north", "south"]
    later = [event for event in federation.site_events("east", "worked", plan.name) if event["round"] > 1]
    assert later[0]["own_state_of_round"] == 1
    assert all(len(event["sites"]) == len(set(event["sites"])) for event in federation.events("uploads", plan.name))


def test_fewer_sites_than_the_minimum_keep_the_old_head(federation: Federation) -> None:
    federation.run(Plan("too-few", rounds=1, options=OPTIONS), minimum=3)
    kept = RunFolder.of_run(federation.server, "too-few").checkpoint
    before = checkpoint.read(kept, lambda _: None).values[HEAD]
    north = federation.running["north"].process.pid
    longer = Plan("too-few", rounds=9, options=OPTIONS)
    in_round_two = lambda: len(federation.events("greeted", longer.name)) >= 2  # noqa: E731
    try:
        with (
            when(in_round_two, lambda: os.kill(north, signal.SIGSTOP)),
            pytest.raises(RunError, match="fewer in 3 rounds in a row; the head of the last round with enough sites"),
        ):
            federation.run(longer, minimum=3, deadline=20.0)
    finally:
        os.kill(north, signal.SIGCONT)
    assert len(federation.events("too few", "too-few")) == 3
    after = checkpoint.read(kept, lambda _: None)
    assert [event["full"] for event in federation.events("round", "too-few")] == [1, 0, 0, 0]
    assert torch.equal(after.values[HEAD], before)


def test_a_site_that_never_answers_does_not_hold_the_round_beyond_its_deadline(federation: Federation) -> None:
    plan = Plan("stopped-site", rounds=1, options=OPTIONS)
    north = federation.running["north"].process.pid
    greeted = lambda: federation.events("greeted", plan.name)  # noqa: E731
    try:
        with when(greeted, lambda: os.kill(north, signal.SIGSTOP)):
            federation.run(plan, minimum=2, deadline=100.0)
    finally:
        os.kill(north, signal.SIGCONT)
    (round_event,) = federation.events("round", plan.name)
    assert round_event["full"] == 1
    assert round_event["seconds"] < 110
    # Flower tells after a minute without heartbeats that the site is not connected; before that it is just silent.
    told = federation.events("silent", plan.name) + federation.events("refused", plan.name)
    assert "north" in [event["site"] for event in told]


def test_an_error_at_one_site_is_reported_with_its_name(federation: Federation) -> None:
    data = Path(federation.sites["south"].read_config().data or "")
    hidden = data.with_suffix(".hidden")
    data.rename(hidden)
    try:
        federation.run(Plan("no-data", rounds=1, options=OPTIONS), minimum=1, deadline=120.0)
    finally:
        hidden.rename(data)
    refused = federation.events("refused", "no-data")
    assert {event["site"] for event in refused} == {"south"}
    assert "InputError" in refused[0]["reason"]
    assert str(data) not in refused[0]["reason"]


def test_the_server_killed_and_restarted_goes_on_from_its_checkpoint(federation: Federation) -> None:
    plan = Plan("killed-server", rounds=3, options=OPTIONS, seed=5)

    def kill() -> None:
        kill_tree(federation.superlink.superlink)
        kill_tree(federation.superlink.gate)

    after_round_one = lambda: len(federation.events("round", plan.name)) >= 1  # noqa: E731
    with when(after_round_one, kill), pytest.raises(RunError, match="Flower ended"):
        federation.run(plan, minimum=2, deadline=120.0)
    federation.start_server()
    deadline = time.monotonic() + PATIENCE
    while any(federation.state(name) != "online" for name in federation.sites):
        assert time.monotonic() < deadline
        time.sleep(2)
    report = federation.run(plan, minimum=2, deadline=240.0)
    assert federation.events("resumed", plan.name)[0]["after_round"] >= 1
    assert [event["round"] for event in federation.events("round", plan.name)] == [1, 2, 3]
    assert len(report["sites"]) >= 2


def test_no_log_of_any_program_holds_a_value_or_a_label(federation: Federation) -> None:
    for folder in federation.sites.values():
        assert_tells_nothing_of(folder, [federation.server.logs, *(site.logs for site in federation.sites.values())])


def test_nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory, federation: Federation) -> None:
    federation.stack.close()
    listing = subprocess.run(["ps", "-axo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    root = str(federation.server.path.parent)
    assert [line for line in listing.splitlines() if root in line and not line.startswith("Z")] == []
