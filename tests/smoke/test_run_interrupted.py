"""Runs that are killed at random moments: no record is lost, no process is left, and the numbers stay the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedlog.cli.main import main
from fedlog.engine.protocol import checkpoint

# From Python 3.12 on, forking a process that has threads is worth a warning; our workers use none of them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes through /proc"),
]

ROUNDS = 40
SETTINGS = [
    "--data",
    "circle",
    "--clients",
    "6",
    "--rounds",
    str(ROUNDS),
    "--set",
    "epochs=4",
    "--participation",
    "0.7",
]
PATIENCE = 240  # seconds; a busy machine takes a while to import PyTorch


def _start(*arguments: str) -> subprocess.Popen[str]:
    # A session of its own, as a terminal gives it: a signal to the group reaches the workers too.
    return subprocess.Popen(
        [sys.executable, "-m", "fedlog", "run", *arguments, "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _records(folder: Path) -> list[dict[str, Any]]:
    """The complete records so far, without their seconds."""
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in found]


def _wait_for_rounds(running: subprocess.Popen[str], folder: Path, rounds: int) -> list[int]:
    """Wait until this many rounds are recorded, and return the ids of the worker processes."""
    until = time.monotonic() + PATIENCE
    while len(_records(folder)) < rounds:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until, "the run does not get on"
        time.sleep(0.005)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def _all_gone(pids: list[int]) -> bool:
    until = time.monotonic() + 60
    while any(_alive(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_run_that_is_killed_interrupted_and_robbed_of_a_worker_ends_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    moment = random.Random()  # a different moment each time: any of them must do
    whole, folder = tmp_path / "whole", tmp_path / "a folder"
    assert main(["run", *SETTINGS, "--jobs", "1", "--quiet", "--out", str(whole)]) == 0
    expected = _records(whole)

    # SIGKILL: the workers notice, and whatever was recorded stays.
    killed = _start(*SETTINGS, "--out", str(folder))
    workers = _wait_for_rounds(killed, folder, moment.randint(1, 6))
    time.sleep(moment.random() * 0.1)
    killed.kill()
    killed.communicate()
    assert len(workers) == 2
    assert _all_gone(workers)
    done, kept = len(_records(folder)), checkpoint.exists(folder / "checkpoint")

    # Ctrl-C: exit code 130, the hint says how to go on, no worker is left.
    interrupted = _start("--resume", str(folder))
    workers = _wait_for_rounds(interrupted, folder, done + moment.randint(2, 6))
    os.killpg(interrupted.pid, signal.SIGINT)
    out, err = interrupted.communicate(timeout=PATIENCE)
    assert interrupted.returncode == 130, err
    assert out == ""
    assert f"interrupted\nhint: to continue this run: fedlog run --resume '{folder}'\n" in err
    # A run that was killed before its first checkpoint was whole starts anew, with its first record or without.
    assert ("continuing after round" in err) is kept
    assert "Traceback" not in err
    assert _all_gone(workers)
    done = len(_records(folder))

    # One worker dies: a clear error, exit code 1, the other one is ended.
    robbed = _start("--resume", str(folder))
    workers = _wait_for_rounds(robbed, folder, done + moment.randint(2, 6))
    os.kill(moment.choice(workers), signal.SIGKILL)
    out, err = robbed.communicate(timeout=PATIENCE)
    assert robbed.returncode == 1, err
    assert "of 2 ended unexpectedly: exit code -9" in err
    assert "Traceback" not in err
    assert _all_gone(workers)

    assert len(_records(folder)) < ROUNDS
    assert main(["run", "--resume", str(folder), "--json", "--quiet", "--jobs", "1"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert _records(folder) == expected
    clocks = ("seconds", "run_dir", "made_with")
    reference = json.loads((whole / "summary.json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    assert {k: v for k, v in summary.items() if k not in clocks} == {
        k: v for k, v in reference.items() if k not in clocks
    }
    assert found["digest"] == reference["digest"]
    for model in sorted((whole / "models").glob("*.safetensors")):
        one, other = load_file(model), load_file(folder / "models" / model.name)
        assert all(torch.equal(one[name], other[name]) for name in one | other)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_kills_at_any_moment_from_the_first_import_on_lose_nothing(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed after random times until it has finished."""
    monkeypatch.chdir(tmp_path)
    moment = random.Random(seed)
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    assert main(["run", *SETTINGS, "--jobs", "2", "--quiet", "--out", str(whole)]) == 0
    for _ in range(200):
        go_on = ["--resume", str(folder)] if (folder / "config.json").exists() else [*SETTINGS, "--out", str(folder)]
        running = _start(*go_on)
        try:
            running.communicate(timeout=moment.uniform(0.5, 8))
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()
        if running.returncode == 0:
            break
        assert running.returncode == -signal.SIGKILL
    assert _records(folder) == _records(whole)
