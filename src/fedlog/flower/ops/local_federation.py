"""A server and its sites as real processes on one machine; the bytes between them are counted."""

from __future__ import annotations

import datetime as dt
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedlog.data.schema import Schema, dump_schema
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.ops.processes import Say, find_free_port, stop_programs
from fedlog.flower.ops.run import run_federation
from fedlog.flower.ops.server import create_server, register_sites, run_server
from fedlog.flower.ops.site import create_site, run_site
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.run_folder import RoundRules
from fedlog.flower.site.data import check_site
from fedlog.models.threads import compute_on_one_thread

CHUNK_BYTES = 65536
# Far more than a round takes on an idle machine, so that it is enough on a busy one.
DEADLINE_SECONDS = 240.0


@dataclass
class ByteCounter:
    """Counts the bytes sent to the server (`up`) and from the server (`down`)."""

    up: int = 0
    down: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, up: int = 0, down: int = 0) -> None:
        """Add newly sent bytes to the counts: `up` to the server, `down` from the server."""
        with self._lock:
            self.up, self.down = self.up + up, self.down + down


@contextmanager
def open_counting_relay(target_port: int) -> Iterator[tuple[int, ByteCounter]]:
    """Open a local port that forwards all bytes to `target_port` and counts them; close it when the block ends."""
    counter = ByteCounter()
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = [listener]

    def accept_connections() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", target_port))
            except OSError:
                near.close()
                continue
            open_sockets.extend((near, far))
            for source, sink, direction in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=_forward_bytes, args=(source, sink, counter, direction), daemon=True).start()

    thread = threading.Thread(target=accept_connections, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1]), counter
    finally:
        for each in open_sockets:
            # A shutdown wakes the thread that waits in accept or recv; a close alone does not.
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        thread.join(2)


def _forward_bytes(source: socket.socket, sink: socket.socket, counter: ByteCounter, direction: str) -> None:
    """Forward bytes from `source` to `sink` until one is closed, and count them as `direction`: `up` or `down`."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            counter.add(**{direction: len(data)})
            sink.sendall(data)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@dataclass(frozen=True)
class LocalSite:
    """The settings of one site: its data, its body, and the shares of its rows that are held out."""

    data: Path
    body: str
    hold_out: str = "0.2,0.2"


@dataclass(frozen=True)
class LocalFederation:
    """The folders of a server and its sites, all under one folder."""

    server: ServerFolder
    sites: Mapping[str, SiteFolder]

    @classmethod
    def create(cls, root: Path, schema: Schema, sites: Mapping[str, LocalSite]) -> LocalFederation:
        """Make the folders of the server and of the sites, each site with its own key."""
        agreed = root / "schema.toml"
        agreed.write_text(dump_schema(schema))
        server = ServerFolder(root / "server")
        port = find_free_port()
        create_server(server, ServerConfig(("127.0.0.1",), "127.0.0.1", port), agreed, dt.datetime.now(dt.UTC))
        folders = {}
        for name, site in sites.items():
            folder = SiteFolder(root / name)
            create_site(folder, SiteConfig(name, f"127.0.0.1:{port}"), server.certificates.authority, agreed)
            folder.store_data_and_body(str(site.data), site.body, site.hold_out)
            folders[name] = folder
        return cls(server, folders)

    def run(self, plan: Plan, say: Say) -> RunOutcome:
        """Start the server and the sites, run this plan, end every process and return the outcome."""
        return self.run_plans([plan], say)[0]

    def run_plans(self, plans: Sequence[Plan], say: Say) -> list[RunOutcome]:
        """Start the server and the sites, run one plan after the other, end every process and return the outcomes."""
        with self.start(say) as run_plan:
            return [run_plan(plan) for plan in plans]

    @contextmanager
    def start(self, say: Say, write_data: Callable[[], object] = lambda: None) -> Iterator[PlanRunner]:
        """Start the server and the sites, and end all their processes when the block ends.

        Yield a function that runs a plan. `write_data`, if given, writes the sites' data while the server starts.
        """
        with ExitStack() as stack:
            stack.enter_context(compute_on_one_thread())  # the other cores are for the server and the sites
            # Write the data and check the sites while the server starts; one thread does one after the other.
            pool = stack.enter_context(ThreadPoolExecutor(1))
            written = pool.submit(write_data)
            checks = pool.map(lambda folder: check_site(folder, folder.read_config()), self.sites.values())
            stack.enter_context(run_server(self.server, say))
            written.result()
            for line in checks:
                say(line)
            port, counter = stack.enter_context(open_counting_relay(self.server.read_config().port))
            for folder in self.sites.values():
                # The sites reach the server through a relay, which counts the bytes.
                folder.write_config(replace(folder.read_config(), server=f"127.0.0.1:{port}"))
            register_sites(self.server, {name: site.public_key.read_text() for name, site in self.sites.items()}, say)
            sites = [stack.enter_context(run_site(folder, say)) for folder in self.sites.values()]

            def run_plan(plan: Plan) -> RunOutcome:
                """Run a plan with these sites, and return its report and its bytes on the wire."""
                up, down = counter.up, counter.down
                report = run_federation(self.server, plan, RoundRules(len(sites), DEADLINE_SECONDS), say)
                return RunOutcome(report, counter.up - up, counter.down - down)

            yield run_plan
            stop_programs(*sites)


@dataclass(frozen=True)
class RunOutcome:
    """A run's report, and the bytes between sites and server, counted with TLS and without TCP headers."""

    report: Mapping[str, Any]
    wire_bytes_up: int
    wire_bytes_down: int

    def summarise_communication(self) -> dict[str, int]:
        """Return the number of rounds, the bits of messages up and down, and the total bytes on the wire."""
        counted = {name: int(self.report[name]) for name in ("rounds", "bits_up", "bits_down")}
        return {**counted, "wire_bytes": self.wire_bytes_up + self.wire_bytes_down}


PlanRunner = Callable[[Plan], RunOutcome]  # runs a plan and returns the outcome
