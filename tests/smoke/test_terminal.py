"""What people see: summaries on wide, narrow and dumb terminals, signals, and no remarks of other packages."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedlog.cli.main import main

RUN = ["run", "--data", "circle", "--rounds", "1", "--set", "epochs=1", "--jobs", "1"]
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


def show(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real program, its output in pipes."""
    command = [sys.executable, "-m", "fedlog.cli.main", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)


def test_the_summary_has_training_alone_the_settings_and_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--out", "runs/one", "--batch-size", "40", "--codec", "q8"]) == 0
    first = capsys.readouterr()
    assert "training alone" not in first.err.split("next:")[0]
    assert "next: fedlog compare --data circle --quick" in first.err
    assert re.search(r"settings: body \S+; batch size 40; codec q8; epochs 1; ", first.err)
    assert first.out == "report: runs/one/report.html\n"
    assert main([*RUN, "--method", "local", "--out", "runs/alone"]) == 0
    alone = re.search(r"accuracy, mean over clients.*?([\d.]+ %)", capsys.readouterr().err)
    assert alone is not None
    assert main([*RUN, "--out", "runs/two"]) == 0
    second = capsys.readouterr().err
    assert re.search(rf"training alone, on the same records\W+{re.escape(alone[1])}", second)
    assert "next:" not in second


def test_the_next_steps_of_ones_own_files_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my sites").mkdir()
    for at, site in enumerate(("north", "south")):
        rows = "\n".join(
            f"{(row * 7 + at) % 11},{row % 3},{'yes' if (row * 7) % 11 > 5 else 'no'}" for row in range(40)
        )
        Path(f"my sites/{site}.csv").write_text(f"a,b,ill\n{rows}\n")
    data = ["--data", "sites:my sites", "--label", "ill", "--rounds", "1", "--jobs", "1", "--out", "a run"]
    assert main(["run", *data]) == 0
    said = capsys.readouterr().err
    assert "fedlog compare --data 'sites:my sites' --label ill --quick" in said
    (model,) = re.findall(r"next: fedlog predict '(.*)' --data new.csv", said)
    assert main(["predict", model, "--data", "my sites/north.csv"]) == 0


def test_narrow_terminals_pipes_and_no_colour(tmp_path: Path) -> None:
    done = show(*RUN, "--out", str(tmp_path / "narrow"), COLUMNS="34", NO_COLOR="1", TERM="xterm")
    table = [line for line in done.stderr.splitlines() if line[:1] in "┏┃┡│└"]
    assert table
    assert max(map(len, table)) <= 34
    assert "%" in "".join(table)
    assert "\x1b" not in done.stderr + done.stdout
    assert done.stdout == f"report: {tmp_path / 'narrow' / 'report.html'}\n"  # whole, so that it can be copied


def show_on_a_terminal(*arguments: str, **environment: str) -> str:
    """What the real program draws on a terminal, here a pseudo-terminal."""
    leader, follower = os.openpty()
    command = [sys.executable, "-m", "fedlog.cli.main", *arguments]
    environment = {**os.environ, "TERM": "xterm-256color", **environment}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=follower, env=environment) as running:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            shown += part
        assert running.wait() == 0
    os.close(leader)
    return shown.decode()


def test_a_terminal_without_colours_gets_none(tmp_path: Path) -> None:
    shown = show_on_a_terminal(*RUN, "--out", str(tmp_path / "run"), NO_COLOR="1")
    assert "lowest client" in shown
    assert not COLOUR.search(shown)


def test_on_a_narrow_terminal_the_live_line_has_the_round_and_the_accuracy(tmp_path: Path) -> None:
    shown = show_on_a_terminal(*RUN, "--out", str(tmp_path / "run"), NO_COLOR="1", COLUMNS="44")
    assert re.search(r"round 1/1 accuracy [\d.]+ %", shown)
    assert "…" not in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_say_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = ["--data", "circle", "--rounds", "5000", "--set", "epochs=1", "--jobs", "2", "--out", str(folder)]
    command = [sys.executable, "-m", "fedlog.cli.main", "run", *settings]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 240
    while not (folder / "records.jsonl").exists():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    running.send_signal(number)
    _, said = running.communicate(timeout=120)
    assert said.endswith(f"interrupted\nhint: go on with: fedlog run --resume {folder}\n")
    assert "Traceback" not in said
    assert running.returncode == 130


@pytest.mark.filterwarnings("default")
def test_onnx_says_nothing_of_other_packages(tmp_path: Path) -> None:
    assert main([*RUN, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    model = tmp_path / "run" / "models" / "client-0"
    done = show("predict", str(model), "--onnx", str(tmp_path / "model.onnx"))
    assert (done.stdout + done.stderr).startswith("wrote ")
    assert len((done.stdout + done.stderr).splitlines()) == 1


@pytest.mark.slow
def test_the_demo_shows_its_table_and_the_commands_behind_it_only_when_asked(tmp_path: Path) -> None:
    plain = show("federate", "demo", "--rounds", "1")
    assert plain.stdout.startswith("site ")
    assert len(plain.stderr.splitlines()) == 1
    verbose = show("federate", "demo", "--rounds", "1", "--verbose")
    assert "flower-superlink" in verbose.stderr
    assert verbose.stdout.startswith("site ")
