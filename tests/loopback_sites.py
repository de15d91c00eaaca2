"""A server and three sites as real processes on one machine, which tests can kill and start again."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from three_sites import BODIES, SCHEMA, write_table

from fedlog.data.schema import dump_schema
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.ops.processes import RunningProgram, find_descendants, find_free_port
from fedlog.flower.ops.run import run_federation
from fedlog.flower.ops.server import RunningServer, create_server, read_site_statuses, register_site, run_server
from fedlog.flower.ops.site import create_site, run_site
from fedlog.flower.ops.site_service import NOT_ACTIVATED
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.run_folder import RoundRules

OPTIONS = {"epochs": 2, "learning_rate": 0.01}
PATIENCE = 300.0


class Federation:
    """A server and three sites with different bodies, whose processes can be killed and started again."""

    def __init__(self, root: Path) -> None:
        self.server = ServerFolder(root / "server")
        schema = root / "schema.toml"
        schema.write_text(dump_schema(SCHEMA))
        port = find_free_port()
        config = ServerConfig(("127.0.0.1",), "127.0.0.1", port)
        create_server(self.server, config, schema, dt.datetime.now(dt.UTC))
        self.sites: dict[str, SiteFolder] = {}
        for name in BODIES:
            self.sites[name] = self.make_site(root / name, name)
        self.stack = ExitStack()
        self.superlink: RunningServer
        self.running: dict[str, RunningProgram] = {}

    def make_site(self, path: Path, name: str) -> SiteFolder:
        """A site's folder with a key of its own, data and a body."""
        folder = SiteFolder(path)
        address = f"127.0.0.1:{self.server.read_config().port}"
        create_site(folder, SiteConfig(name, address), self.server.certificates.authority, self.server.schema_file)
        folder.store_data_and_body(str(write_table(path / "data.csv", name)), BODIES[name])
        return folder

    def admit(self, *names: str) -> None:
        """Register and start these sites."""
        for name in names:
            register_site(self.server, name, self.sites[name].public_key.read_text(), print)
            self.start_site(name)

    def start_server(self) -> None:
        self.superlink = self.stack.enter_context(run_server(self.server, print))

    def start_site(self, name: str) -> None:
        """Start a site's SuperNode, again and again while the server still lists its predecessor."""
        deadline = time.monotonic() + PATIENCE
        while True:
            running = self.stack.enter_context(run_site(self.sites[name], print))
            self.running[name] = running
            if self.wait_until_let_in(running):
                return
            assert NOT_ACTIVATED in running.read_log_end(30), running.read_log_end(30)
            assert time.monotonic() < deadline
            time.sleep(5)

    def wait_until_let_in(self, running: RunningProgram) -> bool:
        """Whether the server has taken the SuperNode, once it is known."""
        deadline = time.monotonic() + PATIENCE
        while running.exit_code is None:
            if "SuperNode ID" in running.read_log_end(200):
                return True
            assert time.monotonic() < deadline, running.read_log_end()
            time.sleep(0.5)
        return False

    def state(self, name: str) -> str:
        return next(status.state for status in read_site_statuses(self.server) if status.name == name)

    def events(self, event: str, run: str) -> list[dict[str, Any]]:
        everything = read_events(self.server.event_log)
        return [e for e in everything if e["event"] == event and e.get("run") == run]

    def site_events(self, name: str, event: str, run: str) -> list[dict[str, Any]]:
        everything = read_events(self.sites[name].event_log)
        return [e for e in everything if e["event"] == event and e.get("run") == run]

    def run(self, plan: Plan, minimum: int = 2, deadline: float = 120.0) -> dict[str, Any]:
        return run_federation(self.server, plan, RoundRules(minimum, deadline), print)


def kill_tree(running: RunningProgram) -> None:
    """SIGKILL to a program and everything below it at once, as a power cut does."""
    for process in (*find_descendants(running.process.pid), running.process):
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.kill()
    running.process.wait()


@contextmanager
def when(ready: Callable[[], object], act: Callable[[], None]) -> Iterator[None]:
    """Do something beside the block, as soon as a condition holds; an AssertionError where it never does."""
    acted, ended = threading.Event(), threading.Event()

    def wait() -> None:
        while not ended.wait(0.1):
            if ready():
                act()
                acted.set()
                return

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert acted.is_set(), "the block has ended, and the moment to act never came"


@contextmanager
def started(root: Path, *names: str) -> Iterator[Federation]:
    """A running server with these sites, ended at the end."""
    federation = Federation(root)
    with federation.stack:
        federation.start_server()
        federation.admit(*names)
        yield federation
