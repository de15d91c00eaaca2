"""Runs of real processes on the loopback: the simulator's numbers, and what happens when a process is killed."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from three_sites import BODIES, SCHEMA, simulation, write_table

from fedlog.data.schema import dump_schema
from fedlog.engine import checkpoint
from fedlog.errors import RunError
from fedlog.flower.events import read_events
from fedlog.flower.folders import ServerConfig, ServerFolder, SiteConfig, SiteFolder
from fedlog.flower.plan import Plan
from fedlog.flower.processes import Running, _descendants, free_port
from fedlog.flower.run_folder import RunFolder, Terms
from fedlog.flower.run_side import run_federation
from fedlog.flower.server_side import RunningServer, create_server, register, running_server, site_statuses
from fedlog.flower.site_side import NOT_ACTIVATED, create_site, running_site
from fedlog.models.folder import load_model

pytestmark = pytest.mark.slow

OPTIONS = {"epochs": 2, "learning_rate": 0.01}
PATIENCE = 300.0


class Federation:
    """A server and three sites with different bodies, whose processes can be killed and started again."""

    def __init__(self, root: Path) -> None:
        self.server = ServerFolder(root / "server")
        schema = root / "schema.toml"
        schema.write_text(dump_schema(SCHEMA))
        port = free_port()
        config = ServerConfig(("127.0.0.1",), "127.0.0.1", port)
        create_server(self.server, config, schema, dt.datetime.now(dt.UTC))
        self.sites = {}
        for name, body in BODIES.items():
            folder = SiteFolder(root / name)
            create_site(folder, SiteConfig(name, f"127.0.0.1:{port}"), self.server.certificates.authority, schema)
            folder.choose(str(write_table(root / f"{name}.csv", name)), body)
            self.sites[name] = folder
        self.stack = ExitStack()
        self.superlink: RunningServer
        self.running: dict[str, Running] = {}

    def start_server(self) -> None:
        self.superlink = self.stack.enter_context(running_server(self.server, print))

    def start_site(self, name: str) -> None:
        """Start a site's SuperNode, again and again while the server still lists its predecessor."""
        deadline = time.monotonic() + PATIENCE
        while True:
            running = self.stack.enter_context(running_site(self.sites[name], print))
            self.running[name] = running
            while running.exit_code is None:
                if "SuperNode ID" in running.log_tail(200):  # it is let in
                    return
                assert time.monotonic() < deadline, running.log_tail()
                time.sleep(1)
            assert NOT_ACTIVATED in running.log_tail(30), running.log_tail(30)
            time.sleep(5)

    def state(self, name: str) -> str:
        return next(status.state for status in site_statuses(self.server) if status.name == name)

    def events(self, event: str, run: str) -> list[dict[str, Any]]:
        everything = read_events(self.server.logs / "events.jsonl")
        return [e for e in everything if e["event"] == event and e.get("run") == run]

    def site_events(self, name: str, event: str, run: str) -> list[dict[str, Any]]:
        everything = read_events(self.sites[name].logs / "events.jsonl")
        return [e for e in everything if e["event"] == event and e.get("run") == run]

    def run(self, plan: Plan, minimum: int = 2, deadline: float = 120.0) -> dict[str, Any]:
        return run_federation(self.server, plan, Terms(minimum, deadline), print)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    federation = Federation(tmp_path_factory.mktemp("federation"))
    with federation.stack:
        federation.start_server()
        for name, folder in federation.sites.items():
            register(federation.server, name, folder.public_key.read_text(), print)
            federation.start_site(name)
        yield federation


def kill_tree(running: Running) -> None:
    """SIGKILL to a program and everything below it at once, as a power cut does."""
    for pid, _ in (*_descendants(running.process.pid), (running.process.pid, "")):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    running.process.wait()


@contextmanager
def when(ready: Callable[[], object], act: Callable[[], None]) -> Iterator[None]:
    """Do something beside the block, as soon as a condition holds."""

    def wait() -> None:
        deadline = time.monotonic() + PATIENCE
        while not ready() and time.monotonic() < deadline:
            time.sleep(0.1)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_real_processes_compute_what_the_simulator_computes(federation: Federation, tmp_path: Path) -> None:
    plan = Plan("equal", rounds=2, options=OPTIONS, seed=3)
    report = federation.run(plan, minimum=3, deadline=240.0)
    simulated = simulation(federation.sites.values(), plan)
    records = list(simulated.rounds())
    simulated.save_models(tmp_path)
    state = checkpoint.read(RunFolder.of(federation.server, "equal").checkpoint, lambda _: None)
    for name in ("statistics", "head"):
        torch.testing.assert_close(state.values[name], simulated.server.state[name], rtol=1e-6, atol=1e-7)
    assert [site["federated_accuracy"] for site in report["sites"]] == pytest.approx(records[-1].accuracy_per_client)
    for name, folder in federation.sites.items():
        model = load_model(folder.models / "equal")
        if model.provenance["kept"] == "federated":
            for entry, value in load_file(tmp_path / f"{name}.safetensors").items():
                torch.testing.assert_close(model.params[entry], value, rtol=1e-5, atol=1e-6)


def test_a_site_killed_in_mid_round_goes_on_with_its_own_body(federation: Federation) -> None:
    plan = Plan("killed-site", rounds=4, options=OPTIONS)

    def kill_and_restart() -> None:
        kill_tree(federation.running["east"])
        federation.start_site("east")

    in_round_two = lambda: len(federation.events("round", plan.name)) >= 1  # noqa: E731
    with when(in_round_two, kill_and_restart):
        report = federation.run(plan, minimum=2, deadline=120.0)
    assert "east" in [site["name"] for site in report["sites"]]
    worked = [event["round"] for event in federation.site_events("east", "worked", plan.name)]
    assert worked[0] == 1
    assert len(worked) >= 2


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


def test_nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory, federation: Federation) -> None:
    federation.stack.close()
    listing = subprocess.run(["ps", "-axo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    root = str(federation.server.path.parent)
    assert [line for line in listing.splitlines() if root in line and not line.startswith("Z")] == []
