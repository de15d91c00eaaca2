"""`fedlog federate site` as a real process: when it is connected, and why it ends or starts its SuperNode again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from loopback_sites import PATIENCE, Federation, kill_tree

from fedlog.flower.folders.folder import read_events
from fedlog.flower.ops.event_text import describe_connection_event
from fedlog.flower.ops.processes import Command, RunningProgram, find_descendants, find_program, start_program
from fedlog.flower.ops.server import register_site, unregister_site

pytestmark = pytest.mark.slow

# Every process of the site reads a clock that is ahead: the call of the C library through which Python reads it.
WRONG_CLOCK = """
#define _GNU_SOURCE
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec *at) {
    long found = syscall(SYS_clock_gettime, which, at);
    if (found == 0 && which == CLOCK_REALTIME) at->tv_sec += 9;
    return (int) found;
}
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    federation = Federation(tmp_path_factory.mktemp("federation"))
    with federation.stack:
        federation.start_server()
        for name in ("east", "north"):
            register_site(federation.server, name, federation.sites[name].public_key.read_text(), print)
        yield federation


def start_command(federation: Federation, name: str, environment: dict[str, str] | None = None) -> RunningProgram:
    """`fedlog federate site` with its output in a file."""
    folder = federation.sites[name]
    command = Command((find_program("fedlog"), "federate", "site", str(folder.path)), environment or {})
    return start_program(command, folder.path / "console.log")


def wait_for(running: RunningProgram, words: str, times: int = 1) -> None:
    deadline = time.monotonic() + PATIENCE
    while running.read_log_end(1000).count(words) < times:
        assert time.monotonic() < deadline, running.read_log_end(40)
        time.sleep(0.3)


def find_supernode(running: RunningProgram) -> psutil.Process:
    return next(
        child for child in find_descendants(running.process.pid) if "fedlog.flower.site.supernode" in child.cmdline()
    )


def told_by_the_gate(federation: Federation) -> list[str]:
    return [line for event in read_events(federation.server.event_log) if (line := describe_connection_event(event))]


def test_a_killed_supernode_a_lost_server_and_a_key_that_is_locked_out(federation: Federation) -> None:
    running = start_command(federation, "east")
    try:
        wait_for(running, "connected to 127.0.0.1")
        assert "east is connected" in told_by_the_gate(federation)
        find_supernode(running).send_signal(signal.SIGKILL)
        wait_for(running, "the SuperNode was killed (SIGKILL)\nnext try in 1 s")
        wait_for(running, "connected to 127.0.0.1", times=2)  # once the server no longer lists the first
        assert "east: its SuperNode was killed, and is started again" in told_by_the_gate(federation)
        kill_tree(federation.superlink.superlink)
        kill_tree(federation.superlink.gate)
        wait_for(running, "lost the server at 127.0.0.1")
        federation.start_server()
        wait_for(running, "found the server at 127.0.0.1")
        # Now, as a busy machine may lose the server once more.
        events = [event["event"] for event in read_events(federation.sites["east"].event_log)]
        assert events.count("connected") >= 2
        assert [e for e in events if e in ("server lost", "server found")][-2:] == ["server lost", "server found"]
        unregister_site(federation.server, "east", print)
        assert running.process.wait(PATIENCE) == 1
        end = running.read_log_end(12)
        assert "the server refuses this site's key" in end
        assert "hint:" in end
        assert "fedlog federate rekey" in end
        events = [event["event"] for event in read_events(federation.sites["east"].event_log)]
        assert events[-1] == "ended"
    finally:
        running.stop()


def test_a_stopped_site_says_so_at_the_server(federation: Federation) -> None:
    running = start_command(federation, "north")
    try:
        wait_for(running, "connected to 127.0.0.1")
        running.process.terminate()
        assert running.process.wait(60) == 0
    finally:
        running.stop()
    assert "north: stopped at the site" in told_by_the_gate(federation)
    assert "north has left: its SuperNode was stopped" in told_by_the_gate(federation)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler for a clock that is off")
def test_a_clock_that_is_ahead_is_named_and_ends_the_site(federation: Federation, tmp_path: Path) -> None:
    (tmp_path / "clock.c").write_text(WRONG_CLOCK)
    library = tmp_path / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "clock.c")], check=True)
    running = start_command(federation, "north", {"LD_PRELOAD": str(library)})
    try:
        assert running.process.wait(PATIENCE) == 1
        end = running.read_log_end(6)
        assert "the clock of this machine is" in end
        assert "s ahead of the server's" in end
        assert "hint: set the clock" in end
    finally:
        running.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_named_at_the_site_and_at_the_server(federation: Federation, tmp_path: Path) -> None:
    """On a real small disk, in a separate mount namespace."""
    folder, fill = federation.sites["north"], tmp_path.parent / "fill"
    script = (
        f"set -e; mount -t tmpfs -o size=60m small {tmp_path}; cp -a {folder.path} {tmp_path}/north; "
        f"(until [ -e {fill} ]; do sleep 1; done; head -c 100m /dev/zero > {tmp_path}/filling || true) & "
        f"exec {find_program('fedlog')} federate site {tmp_path}/north"
    )
    command = Command(("unshare", "-m", "sh", "-c", script))
    running = start_program(command, tmp_path.parent / "small-disk.log")
    try:
        wait_for(running, "connected to 127.0.0.1")
        fill.touch()
        wait_for(running, "the disk is full")
        assert any("north: the disk of the site is full" in line for line in told_by_the_gate(federation))
    finally:
        running.stop()
