"""A federation of real processes on one machine: who may connect, which code runs, and what is left at the end."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fedlog.core.keys import Key
from fedlog.errors import RunError
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import CONNECTION, ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.processes import (
    Command,
    RunningProgram,
    find_free_port,
    find_program,
    make_flower_environment,
    run_command,
    start_program,
)
from fedlog.flower.ops.server import make_flwr_command, read_site_statuses, register_site, run_server
from fedlog.flower.ops.site import run_site
from fedlog.flower.ops.site_service import NOT_ACTIVATED

pytestmark = pytest.mark.slow


def fedlog(*arguments: str) -> str:
    """Run `fedlog federate ...` and return its standard output."""
    done = subprocess.run([find_program("fedlog"), "federate", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Federation:
    """A server and two sites in one folder."""

    def __init__(self, root: Path) -> None:
        self.server = ServerFolder(root / "server")
        self.sites = {name: SiteFolder(root / "a site" / name) for name in ("north", "south")}
        self.stranger = SiteFolder(root / "stranger")
        self.port = find_free_port()
        generator = Key(1).numpy()
        frame = pl.DataFrame({"x": generator.normal(size=60), "y": ["a", "b"] * 30})
        frame.write_csv(root / "data.csv")
        schema = root / "schema.toml"
        schema.write_text(fedlog("schema", str(root / "data.csv")))
        fedlog("init", str(self.server.path), "--schema", str(schema), "--host", "127.0.0.1", "--port", str(self.port))
        for name, folder in {**self.sites, "stranger": self.stranger}.items():
            line = fedlog(
                *("join", str(folder.path), "--server", f"127.0.0.1:{self.port}", "--schema", str(schema)),
                *("--ca", str(self.server.certificates.authority), "--name", name),
            )
            assert line.startswith("ecdsa-sha2-nistp384 ")
            folder.store_data_and_body(str(root / "data.csv"), None)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    federation = Federation(tmp_path_factory.mktemp("federation"))
    with ExitStack() as stack:
        stack.enter_context(run_server(federation.server, print))
        for name, folder in federation.sites.items():
            register_site(federation.server, name, folder.public_key.read_text(), print)
            stack.enter_context(run_site(folder, print))
        deadline = time.monotonic() + 60
        while [status.state for status in read_site_statuses(federation.server)] != ["online", "online"]:
            assert time.monotonic() < deadline
        yield federation


def run_app(federation: Federation, app: Path, *settings: str) -> str:
    """The streamed output of a plain `flwr run`."""
    told = " ".join(("rounds=1", "deadline-seconds=120.0", *settings))
    command = make_flwr_command(federation.server, "run", str(app), CONNECTION, "--stream", "--run-config", told)
    return run_command(command, timeout_seconds=400)


def events(federation: Federation, run: str, kind: str) -> list[dict[str, Any]]:
    """The server's events of one run and kind."""
    everything = read_events(federation.server.event_log)
    return [event for event in everything if event.get("run") == run and event["event"] == kind]


def test_sites_and_server_greet_each_other(federation: Federation) -> None:
    run_app(federation, federation.server.app, 'name="first"')
    assert [event["sites"] for event in events(federation, "first", "greeted")] == [["north", "south"]]
    assert [event["sites"] for event in events(federation, "first", "finished")] == [["north", "south"]]
    for folder in federation.sites.values():
        told = [event["event"] for event in read_events(folder.event_log) if event.get("run") == "first"]
        assert told == ["welcome", "worked", "finished"]


def test_a_site_with_another_schema_is_left_out(federation: Federation) -> None:
    folder = federation.sites["south"]
    text = folder.schema_file.read_text()
    folder.schema_file.write_text(text.replace('["a", "b"]', '["a", "b", "c"]'))
    try:
        run_app(federation, federation.server.app, 'name="other"', "minimum-sites=1")
    finally:
        folder.schema_file.write_text(text)
    left_out = events(federation, "other", "left out")[0]
    assert left_out["site"] == "south"
    assert "expected schema" in str(left_out["reason"])
    assert events(federation, "other", "greeted")[0]["sites"] == ["north"]


def test_code_that_comes_with_a_run_is_not_executed_at_a_site(federation: Federation, tmp_path: Path) -> None:
    evil = tmp_path / "app"
    package = evil / "fedlog_app"
    package.mkdir(parents=True)
    (evil / "pyproject.toml").write_text((federation.server.app / "pyproject.toml").read_text())
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text((federation.server.app / "fedlog_app" / "server.py").read_text())
    spoils = tmp_path / "spoils"
    (package / "client.py").write_text(
        f"open({str(spoils)!r}, 'a').write('executed')\n"
        "from fedlog.flower.site import client_app\napp = client_app.app\n"
    )
    run_app(federation, evil, 'name="evil"')
    assert [event["sites"] for event in events(federation, "evil", "finished")] == [["north", "south"]]
    assert not spoils.exists()


def outside(federation: Federation, path: str) -> int:
    """The status of a request from outside, with the right authority."""
    trust = ssl.create_default_context(cafile=str(federation.server.certificates.authority))
    request = urllib.request.Request(f"https://127.0.0.1:{federation.port}{path}", data=b"")
    try:
        with urllib.request.urlopen(request, context=trust) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/register-node",
        "/v1/runtime/acquire-task",
        "/v1/fleet/register-node",
        "/docs",
    ],
)
def test_the_gate_shows_nothing_but_the_fleet(federation: Federation, path: str) -> None:
    assert outside(federation, path) == 404


def test_an_unsigned_request_is_refused(federation: Federation) -> None:
    assert outside(federation, "/v1/fleet/pull-messages") in (400, 401, 415)


def test_an_operator_command_from_outside_is_refused(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        f'[superlink]\ndefault = "x"\n\n[superlink.x]\naddress = "127.0.0.1:{federation.port}"\n'
        f'root-certificates = "{federation.server.certificates.authority}"\n'
    )
    command = Command((find_program("flwr"), "supernode", "list", "x"), make_flower_environment(tmp_path))
    with pytest.raises(RunError, match="exit code 1"):
        run_command(command)


def wait_for_exit(running: RunningProgram) -> str:
    deadline = time.monotonic() + 40
    while running.exit_code is None:
        assert time.monotonic() < deadline, running.read_log_end()
        time.sleep(0.2)
    return running.read_log_end(30)


def test_an_unregistered_key_is_refused(federation: Federation) -> None:
    with run_site(federation.stranger, print) as running:
        assert NOT_ACTIVATED in wait_for_exit(running)


def test_a_plaintext_client_is_refused(federation: Federation, tmp_path: Path) -> None:
    arguments = ("--superlink", f"127.0.0.1:{federation.port}", "--insecure", "--max-retries", "1")
    command = Command(
        (find_program("flower-supernode"), *arguments, "--port", str(find_free_port())),
        make_flower_environment(tmp_path),
    )
    running = start_program(command, tmp_path / "log")
    try:
        assert "Failed to initialize the connection" in wait_for_exit(running)
    finally:
        running.stop()


def test_stopping_the_commands_leaves_no_process(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    log = tmp_path / "server.log"
    server = start_program(Command((find_program("fedlog"), "federate", "server", str(federation.server.path))), log)
    try:
        deadline = time.monotonic() + 60
        while "sites can join" not in server.read_log_end():
            assert time.monotonic() < deadline, server.read_log_end()
            time.sleep(0.2)
        assert json.loads(fedlog("status", str(federation.server.path), "--json")) == {"sites": []}
    finally:
        server.process.terminate()
        assert server.process.wait(30) == 0
    listing = subprocess.run(["ps", "-axo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    ours = [line for line in listing.splitlines() if str(tmp_path) in line and not line.startswith("Z")]
    assert ours == []
