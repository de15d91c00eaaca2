"""Messages between a site and the gate outside of runs, and why a site ends; the gate is a real process."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from flwr.supercore.task_identity import TaskIdentity
from three_sites import BODIES, SCHEMA, InProcess, events_named, fill_site, make_server, quick_clock

from fedlog.data.schema import dump_schema
from fedlog.errors import InputError, RunError
from fedlog.flower.folders.folder import LineFollower, read_events
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.ops import site as ops_site
from fedlog.flower.ops import site_service
from fedlog.flower.ops.event_text import describe_connection_event, describe_run_event, describe_site_event
from fedlog.flower.ops.processes import Command, find_free_port, start_program, wait_for_port
from fedlog.flower.ops.server import create_server, make_gate_command
from fedlog.flower.ops.site import create_site, replace_keys
from fedlog.flower.ops.site_service import (
    LONG_LIFE_SECONDS,
    NOT_ACTIVATED,
    WATCH_SECONDS,
    CertificateError,
    RestartEffect,
    SiteService,
    SuperNodeLog,
    UnreachableError,
    check_in,
    diagnose_exit,
    report_state,
)
from fedlog.flower.protocol.check_in import CHECK_IN_PATH, LIMIT_BYTES, CheckInAnswer, SiteState, describe_clock
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.callers import LOST_SECONDS, Presence, RegisteredKeys, sign_call
from fedlog.flower.server.gate import Gate
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules

NOW = dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFolder]:
    """A server of which only the gate runs."""
    root = tmp_path_factory.mktemp("federation")
    folder = ServerFolder(root / "server")
    (root / "schema.toml").write_text(dump_schema(SCHEMA))
    config = ServerConfig(("127.0.0.1",), "127.0.0.1", find_free_port())
    create_server(folder, config, root / "schema.toml", NOW)
    running = start_program(make_gate_command(folder, find_free_port()), folder.logs / "gate.log")
    try:
        wait_for_port(running, config.port)
        yield folder
    finally:
        running.stop()


@pytest.fixture
def site(server: ServerFolder, tmp_path: Path) -> SiteFolder:
    folder = SiteFolder(tmp_path / "north")
    address = f"127.0.0.1:{server.read_config().port}"
    create_site(folder, SiteConfig("north", address), server.certificates.authority, server.schema_file)
    server.add_registered_site("north", "17", folder.public_key.read_text())
    return folder


def gate_events(server: ServerFolder, event: str) -> list[dict[str, object]]:
    return [dict(found) for found in read_events(server.event_log) if found["event"] == event]


def test_a_site_learns_how_it_stands_and_the_server_what_ails_it(server: ServerFolder, site: SiteFolder) -> None:
    standing = check_in(site, SiteState.NO_SPACE)
    assert standing.registered
    assert abs(standing.ahead_seconds) < 3
    assert gate_events(server, "news")[-1]["news"] == "the disk of the site is full"
    assert describe_connection_event(gate_events(server, "news")[-1]) == "north: the disk of the site is full"
    count = len(gate_events(server, "news"))
    report_state(site, SiteState.NO_SPACE)  # the same within a minute is told once
    server.remove_registered_site("north")
    assert not check_in(site, SiteState.KILLED).registered  # and what a stranger says is not told at all
    assert len(gate_events(server, "news")) == count


def test_a_damaged_key_or_certificate_is_named_with_what_to_do(site: SiteFolder) -> None:
    site.private_key.write_text("no key\n")
    with pytest.raises(InputError, match=r"expected a site's private key, found none in: .*site.key") as damaged_key:
        check_in(site)
    assert "fedlog federate rekey" in str(damaged_key.value.hint)
    replace_keys(site)
    site.authority.write_text("no certificate\n")
    with pytest.raises(InputError, match=r"authority, found no certificate in: .*ca.crt"):
        check_in(site)


def test_a_clock_that_is_off_is_measured_and_named_on_both_sides(server: ServerFolder, site: SiteFolder) -> None:
    ahead = check_in(site, now=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=7))
    behind = check_in(site, now=dt.datetime.now(dt.UTC) - dt.timedelta(seconds=400))
    assert 5 < ahead.ahead_seconds < 8
    assert -403 < behind.ahead_seconds < -399
    for standing, words in ((ahead, "s ahead of the server's"), (behind, "s behind the server's")):
        diagnosis = site_service.diagnose_clock(standing)
        assert diagnosis is not None
        assert diagnosis.restart is RestartEffect.FINAL
        assert words in diagnosis.reason
        assert "time service" in str(diagnosis.hint)
    key = serialization.load_ssh_private_key(site.private_key.read_bytes(), password=None)
    headers = sign_call(key, dt.datetime.now(dt.UTC) + dt.timedelta(seconds=7))  # type: ignore[arg-type]
    url = f"https://127.0.0.1:{server.read_config().port}/v1/fleet/pull-messages"
    trust = ssl.create_default_context(cafile=server.certificates.authority)
    for _ in range(3):
        assert httpx.post(url, headers=headers, verify=trust).status_code == 401
    (told,) = gate_events(server, "call refused")
    assert told["site"] == "north"
    assert 5 < float(str(told["ahead_seconds"])) < 8
    assert "refused a call of north: its clock is" in str(describe_connection_event(told))
    assert "s ahead of the server's" in str(describe_connection_event(told))


def test_every_end_of_a_supernode_has_its_reason(
    server: ServerFolder, site: SiteFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = diagnose_exit(site, -9, "")
    assert (killed.restart, killed.state_to_report) == (RestartEffect.ENDED, SiteState.KILLED)
    assert "SIGKILL" in killed.reason
    assert diagnose_exit(site, 1, f"...\n{NOT_ACTIVATED}\n").restart is RestartEffect.STILL_LISTED
    ended = diagnose_exit(site, 1, "the last words")
    assert (ended.restart, "the last words" in ended.reason) == (RestartEffect.ENDED, True)
    server.remove_registered_site("north")
    unknown = diagnose_exit(site, 0, "")
    assert unknown.restart is RestartEffect.UNKNOWN_KEY
    assert "rekey" in str(unknown.hint)
    with monkeypatch.context() as patch:
        patch.setattr(site_service, "is_disk_nearly_full", lambda path: True)
        assert diagnose_exit(site, 0, "").state_to_report is SiteState.NO_SPACE
    with monkeypatch.context() as patch:
        patch.setattr(site_service, "check_in", lambda folder: CheckInAnswer(False, 9.0))
        # The clock is diagnosed before all that follows from it.
        assert diagnose_exit(site, 1, NOT_ACTIVATED).state_to_report is SiteState.CLOCK
    other = ServerFolder(tmp_path / "other")
    create_server(other, ServerConfig(("127.0.0.1",), "127.0.0.1", 1), server.schema_file, NOW)
    site.authority.write_bytes(other.certificates.authority.read_bytes())
    with pytest.raises(CertificateError, match=r"expected at .* a certificate that .* has signed, found another"):
        check_in(site)
    assert diagnose_exit(site, 0, "").restart is RestartEffect.FINAL
    site.write_config(SiteConfig("north", f"127.0.0.1:{find_free_port()}"))
    with pytest.raises(UnreachableError, match="found none"):
        check_in(site)
    assert diagnose_exit(site, 0, "").restart is RestartEffect.UNREACHABLE
    report_state(site, SiteState.STOPS)  # nobody hears it, and that is no error


def test_a_killed_supernode_is_started_again_later_each_time_and_in_the_end_no_more(
    server: ServerFolder, site: SiteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses, said, starts = [0.0], list[float](), list[str](), list[int]()

    def sleep(seconds: float) -> None:
        if seconds == WATCH_SECONDS:
            time.sleep(0.01)  # the program in the SuperNode's place is a real one
        else:
            pauses.append(seconds)
            now[0] += seconds

    def start_one(*_: object) -> Command:
        starts.append(len(starts))
        now[0] += LONG_LIFE_SECONDS + 1 if len(starts) == 4 else 2.0
        return Command(("/bin/sh", "-c", "kill -KILL $$"))

    monkeypatch.setattr(site_service, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    monkeypatch.setattr(ops_site, "make_supernode_command", start_one)
    with pytest.raises(RunError, match=r"the SuperNode was killed \(SIGKILL\)"):
        SiteService(site, said.append).serve()
    assert pauses == [1, 2, 4, 1, 2, 4, 8, 16, 32, 60, 60]  # the fourth lived for long, and the count began anew
    assert len(starts) == 12
    again = [event["seconds"] for event in read_events(site.event_log) if event["event"] == "starting again"]
    assert again == pauses
    assert [line for line in said if "next try" in line][-1].endswith("next try in 60 s")
    assert [event["event"] for event in read_events(site.event_log)][-1] == "ended"
    assert {str(SiteState.KILLED), str(SiteState.GIVES_UP)} <= {
        str(event["news"]) for event in gate_events(server, "news")
    }


def test_a_check_in_is_signed_and_small(site: SiteFolder, tmp_path: Path) -> None:
    key = serialization.load_ssh_private_key(site.private_key.read_bytes(), password=None)

    async def post(headers: dict[str, str], body: bytes) -> int:
        gate = Gate("https://127.0.0.1:1", httpx.AsyncClient(), RegisteredKeys(tmp_path))
        transport = httpx.ASGITransport(gate)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="https://gate") as client:
            return (await client.post(CHECK_IN_PATH, content=body, headers=headers)).status_code

    good = sign_call(key, dt.datetime.now(dt.UTC))  # type: ignore[arg-type]
    assert asyncio.run(post(good, b"")) == 200
    assert asyncio.run(post({}, b"")) == 401
    assert asyncio.run(post(good, b"x" * (LIMIT_BYTES + 1))) == 413


def test_the_gate_tells_who_comes_who_goes_and_who_is_lost(tmp_path: Path) -> None:
    presence, later = Presence(tmp_path / "events.jsonl"), NOW + dt.timedelta(seconds=LOST_SECONDS + 1)
    presence.record_call("east", "activate-node", 412, NOW)  # not let in
    presence.record_call("north", "activate-node", 200, NOW)
    presence.record_call("north", "pull-messages", 200, NOW)
    presence.record_call("south", "pull-messages", 200, NOW)  # after a restart of the gate
    presence.record_call("south", "deactivate-node", 200, NOW)
    presence.mark_lost_sites(NOW)
    assert presence.connected == {"north"}
    presence.mark_lost_sites(later)
    presence.record_call("north", "pull-messages", 200, later)
    told = [(str(e["event"]), str(e["site"])) for e in read_events(tmp_path / "events.jsonl")]
    assert told == [
        ("connected", "north"),
        ("connected", "south"),
        ("disconnected", "south"),
        ("lost", "north"),
        ("connected", "north"),
    ]
    lines = [describe_connection_event(event) for event in read_events(tmp_path / "events.jsonl")]
    assert "is lost: no call for 75 s" in str(lines[3])


def test_the_log_of_a_supernode_tells_when_the_server_is_lost_and_found(tmp_path: Path) -> None:
    log = SuperNodeLog(LineFollower(tmp_path / "log"))
    told = []
    for text in (
        "INFO : Starting Flower SuperNode\nWARNING: Connection attempt failed, retrying in 0.4 seconds\n",
        "INFO : SuperNode ID: 17\nINFO : SuperNode ID",
        ": 17\nWARNING: Connection attempt failed, retrying in 0.4 seconds\n" * 3,
        "INFO : Connection successful after 12.00 seconds and 5 tries.\n",
    ):
        with (tmp_path / "log").open("a") as file:
            file.write(text)
        told.append(log.read_connection_events())
    assert told == [["server lost"], ["connected"], ["server lost"], ["server found"]]


@pytest.fixture
def inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def post(tmp_path: Path, inside_a_run: None) -> InProcess:
    return InProcess({name: fill_site(SiteFolder(tmp_path / name), name, body) for name, body in BODIES.items()})


@pytest.mark.parametrize(("offset", "words"), [(8.0, "s behind the server's"), (-8.0, "s ahead of the server's")])
def test_the_greeting_measures_the_clocks(post: InProcess, tmp_path: Path, offset: float, words: str) -> None:
    """The server's clock is moved, so that of each site is off to the other side."""
    folder = make_server(ServerFolder(tmp_path / "server"))
    going = Run(post, folder, SCHEMA, Plan("trial", rounds=1), RoundRules(2, 20.0), quick_clock())
    going._gather_sites()
    assert events_named(folder, "clock") == []
    going.participants.profiles.clear()
    going.participants.wall_clock = lambda: time.time() + offset
    going._gather_sites()
    told = events_named(folder, "clock")
    assert [event["site"] for event in told] == sorted(BODIES)
    assert words in str(describe_run_event(told[0]))
    warnings = [e for e in read_events(post.sites["east"].event_log) if e["event"] == "warning"]
    if offset > 0:  # a greeting from the future: the site knows by itself that it is behind
        assert "s behind the server's, or more" in str(describe_site_event(warnings[-1]))
    assert describe_clock(4.9) is None


def test_a_full_disk_is_named_at_the_server(post: InProcess, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    folder = make_server(ServerFolder(tmp_path / "server"))
    log = post.sites["east"].event_log
    log.parent.mkdir(parents=True)
    log.symlink_to("/dev/full")  # every write to it fails as on a full disk
    Run(post, folder, SCHEMA, Plan("trial", rounds=1), RoundRules(2, 20.0), quick_clock()).conduct()
    (told,) = {(event["site"], event["reason"]) for event in events_named(folder, "left out")}
    assert told == ("east", "the site refused: the disk of this site is full")
