"""The pauses of a SuperNode: short while a run is under way, Flower's own when nothing happens."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import flwr
import pytest
from flwr.common.constant import HEARTBEAT_PATIENCE as HEARTBEAT_PATIENCE_INTERVALS
from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_client, fleet_http_connection, start_client_internal

from fedlog.errors import RunError
from fedlog.flower.site import guard, supernode
from fedlog.flower.site.guard import GUARDED, WAKE_PIPE, WakeableSleep, write_guard_programs
from fedlog.flower.site.supernode import (
    ANSWER_SECONDS,
    FLOWER_ANSWER_SECONDS,
    FLOWER_IDLE_SECONDS,
    HEARTBEAT_PATIENCE,
    HEARTBEAT_SECONDS,
    NEXT_PAUSE,
    SHORTEST_PAUSE_SECONDS,
    GuardStarter,
    ShorterPauses,
    patch_supernode,
)


class FakeClock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def pauses(self) -> ShorterPauses:
        return ShorterPauses(self.sleep, lambda: self.now)


def wait_for_message(clock: FakeClock, pauses: ShorterPauses, after: float) -> tuple[float, int]:
    """Wait as Flower's loop does for a message that comes after so many seconds; return its delay and the calls."""
    there, calls = clock.now + after, 1
    while clock.now < there:
        pauses.sleep(FLOWER_IDLE_SECONDS)
        calls += 1
    late = clock.now - there
    with pauses.record_wait():
        pauses.sleep(FLOWER_ANSWER_SECONDS)
        assert clock.slept[-1] == ANSWER_SECONDS
    return late, calls


def test_a_site_that_waits_for_long_calls_as_seldom_as_flowers() -> None:
    clock = FakeClock()
    pauses = clock.pauses()
    for _ in range(40):
        pauses.sleep(FLOWER_IDLE_SECONDS)
    assert clock.slept[0] == SHORTEST_PAUSE_SECONDS
    assert clock.slept[-1] == FLOWER_IDLE_SECONDS
    assert sum(seconds < FLOWER_IDLE_SECONDS for seconds in clock.slept) < 16
    for at in range(1, 40):
        assert clock.slept[at] <= max(SHORTEST_PAUSE_SECONDS, NEXT_PAUSE * sum(clock.slept[:at]) + 1e-9)
    pauses.sleep(7.0)
    assert clock.slept[-1] == 7.0
    assert pauses.monotonic is time.monotonic


@pytest.mark.parametrize("after", [0.3, 1.5, 4.0, 8.0, 20.0])
def test_calls_of_a_round_are_few_and_no_wait_is_longer_by_more_than_a_third(after: float) -> None:
    clock = FakeClock()
    pauses = clock.pauses()
    waits = [wait_for_message(clock, pauses, after) for _ in range(30)]
    flowers_calls = 2 + int(after / FLOWER_IDLE_SECONDS)
    for late, calls in waits:
        assert late <= min(FLOWER_IDLE_SECONDS, SHORTEST_PAUSE_SECONDS + NEXT_PAUSE * after) + 1e-9
        assert calls <= 20
    for _, calls in waits[2:]:
        assert calls <= flowers_calls + 3


def test_a_short_wait_among_long_ones_stays_short() -> None:
    """A round with a secure sum has steps that follow each other at once, and one that waits for everyone's work."""
    clock = FakeClock()
    pauses = clock.pauses()
    for _ in range(10):
        for after in (6.0, 0.2, 0.2):
            late, _ = wait_for_message(clock, pauses, after)
            assert late <= SHORTEST_PAUSE_SECONDS + NEXT_PAUSE * after + 1e-9
    wait_for_message(clock, pauses, 3600.0)  # until the next run
    late, _ = wait_for_message(clock, pauses, 0.2)
    assert late <= SHORTEST_PAUSE_SECONDS


def test_the_wait_before_the_first_run_does_not_slow_its_rounds() -> None:
    clock = FakeClock()
    pauses = clock.pauses()
    wait_for_message(clock, pauses, 600.0)
    assert wait_for_message(clock, pauses, 0.2)[0] <= SHORTEST_PAUSE_SECONDS


def test_the_program_that_runs_tasks_is_woken_and_sleeps_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "NAP_SECONDS", 0.6)
    read_end, write_end = os.pipe()
    naps = WakeableSleep(read_end)

    def nap(seconds: float) -> float:
        begun = time.monotonic()
        naps.sleep(seconds)
        return time.monotonic() - begun

    os.write(write_end, b"!!")
    threading.Timer(0.3, os.write, (write_end, b"!")).start()
    assert nap(9.0) < 0.3  # there is a task
    assert 0.1 < nap(9.0) < 0.6  # both signals were taken: this nap ends with the third
    assert nap(9.0) >= 0.6
    os.close(write_end)  # the SuperNode has ended: as Flower does, and not as fast as it can
    nap(0.0)
    assert nap(0.2) >= 0.2
    os.close(read_end)


def test_a_message_wakes_the_program_and_its_wait_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_flowers_parts(monkeypatch)
    clock, shared = FakeClock(), list[object]()
    monkeypatch.setattr(supernode, "ShorterPauses", clock.pauses)
    monkeypatch.setattr(start_client_internal, "_push_messages", lambda **given: (shared.append(given), clock.sleep(9)))
    patch_supernode()
    programs, pauses = start_client_internal.subprocess, start_client_internal.time
    assert isinstance(programs, GuardStarter)
    assert isinstance(pauses, ShorterPauses)
    os.set_blocking(programs._read_end, False)
    for wait in (600.0, 4.0):
        clock.sleep(wait)
        start_client_internal._push_messages(state="state")  # type: ignore[call-arg]
        assert os.read(programs._read_end, 9) == b"!"
    assert (shared, list(pauses.waits)) == ([{"state": "state"}] * 2, [4.0])
    assert pauses.waiting_since == clock.now  # what the work took is no wait
    assert not os.get_blocking(programs._write_end)
    for _ in range(100_000):
        programs.wake()  # nobody reads: the pipe is full, and nothing waits for that


def keep_flowers_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the patched parts of Flower after the test."""
    for module, name in ((heartbeat, "HEARTBEAT_DEFAULT_INTERVAL"), (fleet_http_client, "HEARTBEAT_CALL_TIMEOUT")):
        monkeypatch.setattr(module, name, getattr(module, name))
    for name in ("subprocess", "time", "_push_messages"):
        monkeypatch.setattr(start_client_internal, name, getattr(start_client_internal, name))


def test_flower_still_sleeps_where_the_pauses_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.findall(r"time\.sleep\(([\d.]+)\)", inspect.getsource(start_client_internal))
    assert sorted(set(map(float, found))) == [FLOWER_ANSWER_SECONDS, FLOWER_IDLE_SECONDS]
    monkeypatch.setattr(flwr, "__version__", "9.9.9")
    with pytest.raises(RunError, match="expected flwr"):
        supernode.main()


def test_heartbeats_go_out_often_enough_to_miss_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower takes a site for gone after two of the intervals that it announces."""
    keep_flowers_parts(monkeypatch)
    patch_supernode()
    longest = (heartbeat.HEARTBEAT_DEFAULT_INTERVAL - heartbeat.HEARTBEAT_CALL_TIMEOUT) * 0.9
    gone_after = HEARTBEAT_PATIENCE_INTERVALS * fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL
    assert (HEARTBEAT_SECONDS, fleet_http_client.HEARTBEAT_CALL_TIMEOUT) == (15, HEARTBEAT_PATIENCE)
    assert gone_after / longest > 6  # five can come late, where it was two
    assert isinstance(start_client_internal.subprocess, GuardStarter)
    with pytest.raises(RunError, match="expected subprocess in"):
        patch_supernode()  # not as Flower has it any more


@pytest.mark.parametrize("name", ["plain", "with:separator"])
def test_the_guard_is_started_whatever_the_path_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A folder of programs that the system cannot use must not bring Flower's own program back, which runs any code."""
    programs, flower = tmp_path / name, tmp_path / "flower"
    for folder in (programs, flower):
        folder.mkdir()
    write_guard_programs(programs)
    (programs / GUARDED).chmod(0o644)  # as on a disk mounted noexec
    (flower / GUARDED).write_text(f"#!/bin/sh\ntouch {tmp_path}/flowers-own\n")
    (flower / GUARDED).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), str(flower), os.environ["PATH"]]))
    subprocess.Popen([GUARDED]).wait()
    assert (tmp_path / "flowers-own").exists()  # what the system does with the bare name
    (tmp_path / "flowers-own").unlink()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/started\nhead -c 1 /dev/fd/${WAKE_PIPE} > {tmp_path}/woken\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    programs_of_ours = GuardStarter()
    with programs_of_ours.Popen([GUARDED, "--insecure"]) as started:
        programs_of_ours.wake()
        assert started.wait() == 0
    assert (tmp_path / "woken").read_text() == "!"
    assert (tmp_path / "started").read_text() == "-m fedlog.flower.site.guard --insecure\n"
    assert not (tmp_path / "flowers-own").exists()
    with pytest.raises(RunError, match="another program"):
        GuardStarter().Popen(["flwr-clientapp"])
