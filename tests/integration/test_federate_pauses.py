"""The pauses of a SuperNode: short while a run is under way, Flower's own when nothing happens."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import flwr
import pytest
from flwr.common.constant import HEARTBEAT_PATIENCE as HEARTBEAT_PATIENCE_INTERVALS
from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_client, fleet_http_connection, start_client_internal

from fedlog.errors import RunError
from fedlog.flower.site import supernode
from fedlog.flower.site.guard import GUARDED, write_guard
from fedlog.flower.site.supernode import (
    ANSWER_SECONDS,
    FIRST_PAUSE_SECONDS,
    FLOWER_ANSWER_SECONDS,
    FLOWER_IDLE_SECONDS,
    HEARTBEAT_PATIENCE,
    HEARTBEAT_SECONDS,
    Pauses,
    Programs,
    replace_parts,
)


def test_a_wait_is_longer_by_little_and_the_calls_are_few() -> None:
    slept: list[float] = []
    pauses = Pauses(slept.append)
    for _ in range(30):
        pauses.sleep(FLOWER_IDLE_SECONDS)
    assert slept[0] == FIRST_PAUSE_SECONDS
    assert slept[-1] == FLOWER_IDLE_SECONDS  # as Flower has it, when nothing comes
    for at in range(1, 30):
        waited = sum(slept[:at])
        assert slept[at] <= 0.36 * waited + FIRST_PAUSE_SECONDS  # beyond the first pause a third of the wait
    assert sum(seconds < FLOWER_IDLE_SECONDS for seconds in slept) < 15
    pauses.sleep(FLOWER_ANSWER_SECONDS)  # a message is being worked on
    assert slept[-1] == ANSWER_SECONDS
    pauses.sleep(FLOWER_IDLE_SECONDS)
    assert slept[-1] == FIRST_PAUSE_SECONDS
    pauses.sleep(7.0)
    assert slept[-1] == 7.0
    assert pauses.monotonic is time.monotonic


def test_flower_still_sleeps_where_the_pauses_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.findall(r"time\.sleep\(([\d.]+)\)", inspect.getsource(start_client_internal))
    assert sorted(set(map(float, found))) == [FLOWER_ANSWER_SECONDS, FLOWER_IDLE_SECONDS]
    monkeypatch.setattr(flwr, "__version__", "9.9.9")
    with pytest.raises(RunError, match="expected flwr"):
        supernode.main()


def test_heartbeats_go_out_often_enough_to_miss_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower takes a site for gone after two of the intervals that it announces."""
    for module, name in ((heartbeat, "HEARTBEAT_DEFAULT_INTERVAL"), (fleet_http_client, "HEARTBEAT_CALL_TIMEOUT")):
        monkeypatch.setattr(module, name, getattr(module, name))
    for name in ("subprocess", "time"):
        monkeypatch.setattr(start_client_internal, name, getattr(start_client_internal, name))
    replace_parts()
    longest = (heartbeat.HEARTBEAT_DEFAULT_INTERVAL - heartbeat.HEARTBEAT_CALL_TIMEOUT) * 0.9
    gone_after = HEARTBEAT_PATIENCE_INTERVALS * fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL
    assert (HEARTBEAT_SECONDS, fleet_http_client.HEARTBEAT_CALL_TIMEOUT) == (15, HEARTBEAT_PATIENCE)
    assert gone_after / longest > 6  # five can come late, where it was two
    assert isinstance(start_client_internal.subprocess, Programs)
    with pytest.raises(RunError, match="expected subprocess in"):
        replace_parts()  # not as Flower has it any more


@pytest.mark.parametrize("name", ["plain", "with:separator"])
def test_the_guard_is_started_whatever_the_path_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A folder of programs that the system cannot use must not bring Flower's own program back, which runs any code."""
    programs, flower = tmp_path / name, tmp_path / "flower"
    for folder in (programs, flower):
        folder.mkdir()
    write_guard(programs)
    (programs / GUARDED).chmod(0o644)  # as on a disk mounted noexec
    (flower / GUARDED).write_text(f"#!/bin/sh\ntouch {tmp_path}/flowers-own\n")
    (flower / GUARDED).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), str(flower), os.environ["PATH"]]))
    subprocess.Popen([GUARDED]).wait()
    assert (tmp_path / "flowers-own").exists()  # what the system does with the bare name
    (tmp_path / "flowers-own").unlink()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/started\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with Programs().Popen([GUARDED, "--insecure"]) as started:
        assert started.wait() == 0
    assert (tmp_path / "started").read_text() == "-m fedlog.flower.site.guard --insecure\n"
    assert not (tmp_path / "flowers-own").exists()
    with pytest.raises(RunError, match="another program"):
        Programs().Popen(["flwr-clientapp"])
