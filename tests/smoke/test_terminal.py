"""The output of commands on wide and narrow terminals, in pipes and after signals."""

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


# Runs several commands in one process, since PyTorch takes seconds to import; a mark after each parts their outputs.
SEVERAL = """
import os, sys
from fedlog.cli.main import main
for arguments, environment in {commands!r}:
    os.environ.update(environment)
    assert main(arguments) == 0
    for stream in (sys.stdout, sys.stderr):
        print({mark!r}, file=stream, flush=True)
"""
MARK = "=== end of command ==="
Commands = list[tuple[list[str], dict[str, str]]]  # arguments, and the environment from then on


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


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], list[str]]:
    """A folder with a run, and the standard outputs and errors of `fedlog run` and of `fedlog predict --onnx` in it."""
    folder = tmp_path_factory.mktemp("piped")
    narrow = {"COLUMNS": "34", "NO_COLOR": "1", "TERM": "xterm"}
    model, onnx = folder / "narrow" / "models" / "client-0", folder / "model.onnx"
    commands: Commands = [
        ([*RUN, "--out", str(folder / "narrow")], narrow),
        (["predict", str(model), "--onnx", str(onnx)], {}),
    ]
    script = SEVERAL.format(commands=commands, mark=MARK)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return folder, done.stdout.split(f"{MARK}\n"), done.stderr.split(f"{MARK}\n")


def test_a_narrow_pipe_gets_a_narrow_table_without_colours(piped: tuple[Path, list[str], list[str]]) -> None:
    folder, (out, *_), (said, *_) = piped
    table = [line for line in said.splitlines() if line[:1] in "┏┃┡│└"]
    assert table
    assert max(map(len, table)) <= 34
    assert "%" in "".join(table)
    assert "\x1b" not in said + out
    assert out == f"report: {folder / 'narrow' / 'report.html'}\n"  # whole, so that it can be copied


def test_onnx_prints_nothing_from_other_packages(piped: tuple[Path, list[str], list[str]]) -> None:
    _, out, said = piped
    assert (out[1] + said[1]).startswith("wrote ")
    assert len((out[1] + said[1]).splitlines()) == 1


@pytest.fixture(scope="module")
def on_terminal(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What two runs draw on a pseudo-terminal without colours: 80 columns wide, and 44."""
    folder = tmp_path_factory.mktemp("terminal")
    commands: Commands = [
        ([*RUN, "--out", str(folder / "wide")], {"COLUMNS": "80"}),
        ([*RUN, "--out", str(folder / "narrow")], {"COLUMNS": "44"}),
    ]
    leader, follower = os.openpty()
    command = [sys.executable, "-c", SEVERAL.format(commands=commands, mark=MARK)]
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"}
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
    return shown.decode().split(MARK)


def test_a_terminal_without_colours_gets_none(on_terminal: list[str]) -> None:
    assert "lowest client" in on_terminal[0]
    assert not COLOUR.search(on_terminal[0])


def test_on_a_narrow_terminal_the_live_line_has_the_round_and_the_accuracy(on_terminal: list[str]) -> None:
    assert re.search(r"round 1/1 accuracy [\d.]+ %", on_terminal[1])
    assert "…" not in on_terminal[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_say_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = ["--data", "circle", "--rounds", "5000", "--set", "epochs=1", "--jobs", "2", "--out", str(folder)]
    command = [sys.executable, "-m", "fedlog", "run", *settings]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 240
    while not (folder / "records.jsonl").exists():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)
    running.send_signal(number)
    _, said = running.communicate(timeout=300)
    assert said.endswith(f"interrupted\nhint: to continue this run: fedlog run --resume {folder}\n")
    assert "Traceback" not in said
    assert running.returncode == 130


@pytest.mark.slow
def test_the_demo_shows_its_table_and_the_commands_behind_it_only_when_asked() -> None:
    demo = [sys.executable, "-m", "fedlog", "federate", "demo", "--rounds", "1"]
    plain = subprocess.run(demo, capture_output=True, text=True, check=True)
    assert plain.stdout.startswith("site ")
    assert len(plain.stderr.splitlines()) == 1
    verbose = subprocess.run([*demo, "--verbose"], capture_output=True, text=True, check=True)
    assert "flower-superlink" in verbose.stderr
    assert verbose.stdout.startswith("site ")
