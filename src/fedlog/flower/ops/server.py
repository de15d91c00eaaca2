"""What an operator does at the server: make its folder, run SuperLink and gate, register sites, show their status."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlog.data.schema import load_schema
from fedlog.errors import InputError, RunError, add_default_hint
from fedlog.flower.folders.folder import LineFollower, check_site_or_run_name
from fedlog.flower.folders.keys import (
    SECRET_FOLDER_MODE,
    check_secret,
    compute_fingerprint,
    count_days_left,
    create_certificates,
    encode_public_key,
    read_public_key,
)
from fedlog.flower.folders.server_folder import CONNECTION, ServerConfig, ServerFolder, erase_deleted_messages
from fedlog.flower.ops.event_text import describe_connection_event
from fedlog.flower.ops.processes import (
    Command,
    RunningProgram,
    Say,
    find_free_port,
    find_program,
    make_flower_environment,
    run_command,
    start_program,
    stop_programs,
    wait_for_port,
)
from fedlog.flower.ops.status import render_server_metrics, render_server_page
from fedlog.flower.ops.status_server import is_loopback, serve_status
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.callers import RegisteredKeys
from fedlog.flower.server.run_folder import RoundRules
from fedlog.flower.server.server_app import make_app_settings, write_flower_app

WATCH_SECONDS = 0.5
RENEW_WITHIN_DAYS = 30
JSON = ("--format", "json")
KEY_IN_USE = "Public key already in use"  # Flower's message, also for a key that was unregistered
REGISTERED_AT_ONCE = 4
OWN_KEY = "each site needs a key of its own: `fedlog federate join` at the site makes one"


def create_server(folder: ServerFolder, config: ServerConfig, schema: Path, now: dt.datetime) -> None:
    """Make the server's folder with certificates, settings, schema and the Flower app."""
    load_schema(schema)
    if not 0 < config.port < 65536:
        raise InputError(f"expected a port from 1 to 65535, found: {config.port}", hint="--port 8443")
    if folder.config_file.exists():
        raise InputError(
            f"expected a new folder, found the folder of a server: {folder.path}", hint="choose another folder"
        )
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.path.chmod(SECRET_FOLDER_MODE)
    create_certificates(folder.certificates, config.hosts, now)
    if schema.resolve() != folder.schema_file.resolve():
        shutil.copyfile(schema, folder.schema_file)
    write_flower_app(folder.app, make_app_settings(Plan("run-1"), RoundRules()))
    folder.write_config(config)


def choose_listen_address(hosts: tuple[str, ...]) -> str:
    """Return the address to listen on: 127.0.0.1 if all hosts are this machine, else 0.0.0.0 (all interfaces)."""
    return "127.0.0.1" if all(is_loopback(host) for host in hosts) else "0.0.0.0"


@dataclass(frozen=True, eq=False)
class RunningServer:
    """The programs of a running server: Flower's SuperLink, and the gate, which forwards the sites' calls to it."""

    superlink: RunningProgram
    gate: RunningProgram

    def require_running(self) -> None:
        """Raise RunError, with the end of the log, if the SuperLink or the gate has ended."""
        for running in (self.superlink, self.gate):
            if running.exit_code is not None:
                name = Path(running.log).stem
                raise RunError(
                    f"{name} ended with exit code {running.exit_code}; its log ends:\n{running.read_log_end()}",
                    hint=f"read the whole log, mend the cause and start the server again: {running.log}",
                )


@contextmanager
def run_server(folder: ServerFolder, say: Say) -> Iterator[RunningServer]:
    """Run the server until the block ends; then end all its processes, also after an error."""
    config = folder.read_config()
    check_secret(folder.certificates.server_key)
    left = count_days_left(folder.certificates, dt.datetime.now(dt.UTC))
    if left < RENEW_WITHIN_DAYS:
        say(f"the server's certificate ends in {left:.0f} days: `fedlog federate renew {folder.path}` makes a new one")
    _erase_deleted_messages(folder, say)
    inner = find_free_port()
    folder.write_flwr_config(inner)
    superlink = start_program(make_superlink_command(folder, inner), folder.logs / "superlink.log", say)
    try:
        # The gate answers 503 while the SuperLink is still starting, and Flower's client tries again.
        gate = start_program(make_gate_command(folder, inner), folder.logs / "gate.log", say)
        try:
            wait_for_port(superlink, inner)
            host = "127.0.0.1" if config.listen == "0.0.0.0" else config.listen
            wait_for_port(gate, config.port, host)
            yield RunningServer(superlink, gate)
        finally:
            stop_programs(gate, superlink)
    finally:
        superlink.stop()
        _erase_deleted_messages(folder, say)


def _erase_deleted_messages(folder: ServerFolder, say: Say) -> None:
    """Erase what is left of deleted messages in Flower's database file; tell the operator if that fails."""
    if reason := erase_deleted_messages(folder.database):
        say(f"{folder.database} may still hold messages that Flower has deleted: {reason}")


def serve_federation(folder: ServerFolder, say: Say, metrics_address: str | None = None) -> None:
    """Run the server until Ctrl-C or SIGTERM; raise RunError if one of its programs ends earlier.

    If `metrics_address` is given, serve Prometheus metrics and the status page there.
    """
    with ExitStack() as stack:
        if metrics_address is not None:
            pages = serve_status(
                metrics_address, lambda: render_server_metrics(folder), lambda: render_server_page(folder)
            )
            say(f"metrics and a page: {stack.enter_context(pages)}")
        server = stack.enter_context(run_server(folder, say))
        config = folder.read_config()
        say(f"sites can join: {config.hosts[0]}:{config.port} (listening on {config.listen}); Ctrl-C stops the server")
        follower = LineFollower.from_end(folder.event_log)
        while True:
            server.require_running()
            for line in filter(None, map(describe_connection_event, follower.read_new_events())):
                say(line)
            time.sleep(WATCH_SECONDS)


def make_superlink_command(folder: ServerFolder, port: int) -> Command:
    """Make the command that starts Flower's SuperLink: with TLS, on 127.0.0.1 only, for sites with registered keys."""
    certificates = folder.certificates
    return Command(
        (
            find_program("flower-superlink"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--database", str(folder.database.resolve())),
            *(
                "--ssl-certfile",
                str(certificates.server.resolve()),
                "--ssl-keyfile",
                str(certificates.server_key.resolve()),
            ),
            *("--ssl-ca-certfile", str(certificates.authority.resolve())),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
        ),
        make_flower_environment(folder.flower_home.resolve(), {"FEDLOG_FEDERATION": str(folder.path.resolve())}),
    )


def make_gate_command(folder: ServerFolder, superlink_port: int) -> Command:
    """Make the command that starts the gate, which takes the sites' calls and forwards them to the SuperLink's port."""
    place = str(folder.path.resolve())
    return Command(
        (sys.executable, "-m", "fedlog.flower.server.gate", place, str(superlink_port)),
        make_flower_environment(folder.flower_home.resolve()),
    )


def make_flwr_command(folder: ServerFolder, *arguments: str) -> Command:
    """Make the command that runs `flwr` with these arguments, connected to the running server."""
    return Command((find_program("flwr"), *arguments), make_flower_environment(folder.flower_home.resolve()))


def register_site(folder: ServerFolder, name: str, public_key: str, say: Say) -> str:
    """Register a site's public key with the running server, and return Flower's node number of the site."""
    _check_new_site(folder, name, public_key)
    say(f"key of {name}: fingerprint {compute_fingerprint(public_key)}; compare it with what the site reads to you")
    # Not named NAME.pub yet: the gate takes every key in such a file for a registered one.
    candidate = folder.sites / f"{name}.candidate"
    candidate.parent.mkdir(parents=True, exist_ok=True)
    candidate.write_text(public_key.strip() + "\n")
    command = make_flwr_command(
        folder, "supernode", "register", str(candidate.resolve()), CONNECTION, "--name", name, *JSON
    )
    say(f"$ {command}")
    try:
        node = str(_call_flwr(command, "node-id"))
    except RunError as error:
        if KEY_IN_USE not in error.message:
            raise
        raise InputError(
            f"expected a new key for {name}, found one that was registered before and then unregistered",
            hint="Flower takes no key twice: `fedlog federate rekey` at the site makes a new key, and keeps the rest",
        ) from None
    finally:
        candidate.unlink()
    folder.add_registered_site(name, node, public_key)
    say(f"registered {name} (Flower node {node})")
    return node


def register_sites_in_folder(folder: ServerFolder, keys: Path, say: Say) -> dict[str, str]:
    """Register the keys in all files NAME.pub of the folder `keys`; return site name -> Flower's node number."""
    found = {path.stem: path.read_text() for path in sorted(keys.glob("*.pub"))}
    if not found:
        raise InputError(
            f"expected keys in files NAME.pub, found none: {keys}",
            hint="name each site's site.pub after the site, for example north.pub",
        )
    return register_sites(folder, found, say)


def register_sites(folder: ServerFolder, keys: Mapping[str, str], say: Say) -> dict[str, str]:
    """Register these public keys (site name -> key), and return site name -> Flower's node number.

    Raise InputError before the first registration if a key cannot be used.
    """
    seen: dict[str, str] = {}
    for name, text in keys.items():
        _check_new_site(folder, name, text)
        if (other := seen.setdefault(compute_fingerprint(text), name)) != name:
            raise InputError(
                f"expected a different key for every site, found the same key at: {other}, {name}", hint=OWN_KEY
            )
    # Several at the same time: each needs a program of Flower, which takes seconds to start.
    with ThreadPoolExecutor(REGISTERED_AT_ONCE) as pool:
        tasks = {name: pool.submit(register_site, folder, name, text, say) for name, text in keys.items()}
    failed = {name: error for name, task in tasks.items() if (error := task.exception()) is not None}
    if failed:
        name, error = next(iter(failed.items()))
        raise RunError(
            f"{len(failed)} of {len(keys)} keys were not registered ({', '.join(failed)}); error for {name}: {error}",
            hint="`fedlog federate status` shows the registered sites; move their key files away and register the rest",
        )
    return {name: task.result() for name, task in tasks.items()}


def _check_new_site(folder: ServerFolder, name: str, public_key: str) -> None:
    """Raise InputError if the name or the key is registered already."""
    registered, key = folder.read_registered_sites(), encode_public_key(read_public_key(public_key))
    if check_site_or_run_name(name) in registered:
        raise InputError(
            f"expected a new site name, found one that is registered: {name}",
            hint="remove the old key first: `fedlog federate unregister`",
        )
    if (other := RegisteredKeys(folder.sites).find_site_name(key)) in registered:
        raise InputError(f"expected a new key for {name}, found the key that is registered as: {other}", hint=OWN_KEY)


def unregister_site(folder: ServerFolder, name: str, say: Say) -> None:
    """Unregister a site's key, so that the server refuses its calls from now on."""
    node = folder.find_node_number(name)
    command = make_flwr_command(folder, "supernode", "unregister", node, CONNECTION, *JSON)
    say(f"$ {command}")
    _call_flwr(command, "node-id")
    folder.remove_registered_site(name)


@dataclass(frozen=True)
class SiteStatus:
    """Whether a registered site is connected, and since when."""

    name: str
    state: str  # online, offline, registered
    since: str


def read_site_statuses(folder: ServerFolder) -> tuple[SiteStatus, ...]:
    """Return for each registered site, sorted by name, whether it is connected and since when."""
    listed = _call_flwr(make_flwr_command(folder, "supernode", "list", CONNECTION, *JSON), "nodes")
    by_node = {str(node["node-id"]): node for node in listed}
    statuses = []
    for name, node_id in sorted(folder.read_registered_sites().items()):
        node = by_node.get(node_id)
        state = "unknown to the server" if node is None else str(node["status"])
        since = "" if node is None else str(node["online-at"] if state == "online" else node["offline-at"])
        statuses.append(SiteStatus(name, state, "" if since == "N/A" else since))
    return tuple(statuses)


@add_default_hint("is `fedlog federate server` running?")
def _call_flwr(command: Command, wanted: str) -> Any:
    """Run `flwr` and return the entry `wanted` of its JSON output; raise RunError if there is no such entry.

    With `--format json` most failures are reported in the output only, and the exit code is 0.
    """
    text = run_command(command)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or wanted not in answer:
        found = answer.get("error-message", text) if isinstance(answer, dict) else text
        shown = " ".join(str(found).split())[-400:]
        raise RunError(f"expected an entry {wanted} in the output of `{command}`, found: {shown}")
    return answer[wanted]
