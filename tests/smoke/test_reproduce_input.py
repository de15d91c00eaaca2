"""Mistakes with `fedlog reproduce` and `fedlog report`: folders, numbers, names, interruptions."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedlog.cli import reproduce
from fedlog.cli.main import main
from fedlog.cli.reproduce import CellProgress
from fedlog.experiments.tables import inventory
from fedlog.experiments.tables.catalog import EXPERIMENTS, find_experiments, list_experiments_with_versions
from fedlog.experiments.tables.cells import Cell, CellState, list_cells
from fedlog.experiments.tables.finished_cells import collect_runs
from fedlog.experiments.tables.inventory import ExperimentStatus
from fedlog.experiments.workers import cell_process
from fedlog.experiments.workers.cell_process import Outcome, make_cell_task, run_task_in_new_process

sys.path.insert(0, str(Path(__file__).parent))
from made_up_runs import write_run

TABLE = EXPERIMENTS["table-mnist"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLOG_DATA", str(tmp_path / "no data"))


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--rounds 0", "--rounds must be at least 1, found: 0"),
        ("--rounds -2", "--rounds must be at least 1, found: -2"),
        ("--jobs 0", "--jobs must be at least 1, found: 0"),
        ("--jobs -3", "--jobs must be at least 1, found: -3"),
        ("--list --jobs 0", "--jobs must be at least 1, found: 0"),
        ("--seeds=-1", "--seeds must be whole numbers from 0 on, found: -1"),
        ("--seeds=0,-1", "--seeds must be whole numbers from 0 on, found: 0,-1"),
        ("--seeds 1.5", "--seeds must be whole numbers from 0 on, found: 1.5"),
        ("--seeds ,", "expected names after --seeds, found none: ','"),
        ("--methods ,", "expected names after --methods, found none: ','"),
    ],
)
def test_a_number_that_makes_no_sense_is_one_line_with_a_hint(
    typed: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "natural-users", *typed.split()]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    message, hint = told.err.splitlines()
    assert message == f"error: {said}"
    assert hint.startswith(("hint: --", "hint: for example --"))
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_results_folder_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for out in ("file", "file/below"):
        assert main(["reproduce", "figure-synthetic", "--seeds", "0", "--out", out]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        message, hint = told.err.splitlines()
        assert message.startswith(f"error: cannot write to {out}: ")
        assert hint == "hint: choose another --out"


class Asked:
    """Stands in for the runner: remembers the cells, and finishes each at once."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []

    def __call__(self, wanted: Sequence[Cell], *_: object) -> list[Outcome]:
        self.cells += wanted
        return [Outcome(cell.name, 0.5, None) for cell in wanted]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    stand_in = Asked()
    monkeypatch.setattr(reproduce, "run_cells", stand_in)
    return stand_in


def test_a_seed_or_method_named_twice_runs_once(asked: Asked) -> None:
    assert main(["reproduce", "table-mnist", "--methods", "fedlog,fedlog", "--seeds", "3,3,03,1"]) == 0
    assert [(cell.row.name, cell.seed) for cell in asked.cells] == [("fedlog", 3), ("fedlog", 1)]


def test_the_flexible_figure_is_both_of_its_readings(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert [found.name for found in find_experiments("figure-flexible")] == [
        "figure-flexible-cifar100",
        "figure-flexible-cifar10",
    ]
    arguments = ["reproduce", "figure-flexible", "--methods", "fedlog", "--seeds", "0", "--rounds", "2"]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["experiment"], cell["state"]) for cell in told] == [
        ("figure-flexible-cifar100", "done"),
        ("figure-flexible-cifar10", "done"),
    ]
    assert [cell.spec.data for cell in asked.cells] == ["cifar100", "cifar10"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("-2-rounds: 1 of 1 cells done in results") == 2


def test_an_interruption_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> list[Outcome]:
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "run_cells", interrupted)
    assert main(["reproduce", "table-mnist", "--quiet"]) == 130
    assert capsys.readouterr().err == (
        "interrupted\nhint: to continue, run the same command again; finished runs are kept\n"
    )


def _made_up(out: Path, rounds: int) -> Cell:
    cell = list_cells(TABLE, out, rows=("local",), seeds=(0,), rounds=rounds)[0]
    write_run(cell, [0.5] * rounds, 10)
    return cell


def test_a_folder_with_a_shortened_table_alone_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results"
    _made_up(out, 3)
    assert main(["report", str(out)]) == 0
    assert "fedlog reproduce table-mnist --rounds 3<" in (out / "report.html").read_text()
    capsys.readouterr()


def test_every_command_on_the_page_can_be_typed(
    tmp_path: Path, asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    _made_up(tmp_path / "results", 30)
    assert main(["docs", "--results", "results", "--out", "docs"]) == 0
    pages = [page.read_text() for page in (tmp_path / "docs" / "reproduction").glob("*.md")]
    typed = re.findall(r"^`fedlog (reproduce [^`]+)`: ", "\n".join(pages), flags=re.MULTILINE)
    assert "reproduce table-mnist --rounds 30" in typed
    for command in typed:
        assert main(command.split()) == 0, command
    folders = {f"results/{cell.experiment.name}" for cell in asked.cells}
    assert "results/table-mnist-30-rounds" in folders
    assert len(folders) == len(typed)
    capsys.readouterr()


def test_folders_that_only_look_like_a_shortened_experiment_are_passed_over(tmp_path: Path) -> None:
    for name in ("figure-synthetic-5-rounds", "table-mnist-0-rounds", "table-mnist-x-rounds"):
        (tmp_path / name).mkdir()
    (tmp_path / "table-mnist-4-rounds").touch()
    assert [experiment.name for experiment in list_experiments_with_versions(tmp_path)] == list(EXPERIMENTS)


@pytest.mark.parametrize("narrowed", ["table-mnist", "--methods fedlog", "--seeds 0", "--rounds 3", "--verify"])
def test_the_list_is_of_everything(narrowed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", *narrowed.split()]) == 2
    message, hint = capsys.readouterr().err.splitlines()
    chosen = narrowed.split()[0]
    assert message == f"error: --list always shows all experiments, but these were given too: {chosen}"
    assert hint == "hint: fedlog reproduce --list"


def test_the_list_has_whole_names_and_one_line_for_each_missing_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(inventory, "estimate_seconds", lambda *_: 1.0)
    folders = ["--out", str(tmp_path), "--data-dir", str(tmp_path)]
    assert main(["reproduce", "--list", *folders]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines[: len(EXPERIMENTS)]) <= 80
    assert lines[0].split() == ["experiment", "data", "rows", "seeds", "done", "to", "run"]
    assert {line.split()[0] for line in lines} >= set(EXPERIMENTS)
    (fetch,) = (line for line in lines if line.startswith("MNIST is not in"))
    assert fetch.endswith("select-equal-chances-table-mnist, select-weight-decay-table-mnist")


def test_as_many_processes_as_cores_may_be_used(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 7}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    jobs: list[int] = []
    found = [ExperimentStatus(TABLE, None, 1, 1, (), 0.0)]
    monkeypatch.setattr(reproduce, "make_executor", lambda _, number, __: jobs.append(number))
    monkeypatch.setattr(reproduce, "list_statuses", lambda _, __, number: jobs.append(number) or found)
    assert main(["reproduce", "table-mnist", "--seeds", "0", "--quiet"]) == 0
    assert main(["reproduce", "--list"]) == 0
    assert jobs == [3, 3]


def test_a_failure_is_told_to_the_letter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def failing(wanted: Sequence[Cell], _: object, watcher: CellProgress, __: object) -> list[Outcome]:
        outcome = Outcome(wanted[0].name, None, "missing file: data [old] [/red]/x")
        watcher.on_end(outcome)
        return [outcome]

    monkeypatch.setattr(reproduce, "run_cells", failing)
    assert main(["reproduce", "table-mnist", "--seeds", "0", "--methods", "local"]) == 1
    assert capsys.readouterr().err.count("missing file: data [old] [/red]/x") == 2


@pytest.mark.parametrize("left", [2, 0, None])
def test_a_cell_without_all_of_its_records_is_not_done(left: int | None, tmp_path: Path) -> None:
    cell = _made_up(tmp_path, 3)
    lines = cell.records_file.read_text().splitlines(keepends=True)
    if left is None:
        cell.records_file.unlink()
    else:
        cell.records_file.write_text("".join(lines[:left]))
    assert cell.read_state() is CellState.BEGUN
    (cell.folder / "summary.json").write_text("{}")
    assert cell.read_state() is CellState.BEGUN


def test_a_cell_that_stopped_early_is_done(tmp_path: Path) -> None:
    cell = list_cells(TABLE, tmp_path, rows=("local",), seeds=(0,), rounds=3)[0]
    write_run(cell, [0.5, 0.98], 10)
    assert cell.read_state() is CellState.DONE


UNUSABLE = ["", "[]", "{}", '{"spec": []}', '{"spec": {"metod": "x"}}', '{"spec": {"method": "gone"}}']


def test_a_configuration_that_cannot_be_used_counts_as_another(tmp_path: Path) -> None:
    cell = _made_up(tmp_path, 3)
    assert cell.read_state() is CellState.DONE
    config = cell.folder / "config.json"
    stored = json.loads(config.read_text())
    stored["spec"]["options"]["learn_rate"] = 1
    for text in (*UNUSABLE, json.dumps(stored)):
        config.write_text(text)
        assert cell.read_state() is CellState.OTHER, text


def test_the_report_and_the_list_name_what_was_made_with_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    cell = list_cells(TABLE, out, rows=("local",), seeds=(0,))[0]
    write_run(cell, [0.5], 10)
    config = cell.folder / "config.json"
    stored = json.loads(config.read_text())
    stored["spec"]["options"]["learn_rate"] = 1
    config.write_text(json.dumps(stored))
    assert collect_runs(TABLE, out).others == (cell.folder,)
    assert main(["report", str(out)]) == 0
    assert "1 left out: made with other settings (local/seed-0)" in (out / "report.html").read_text()
    capsys.readouterr()
    listing = ["reproduce", "--list", "--out", "results"]
    assert main(listing) == 0
    assert "table-mnist: made with other settings, or not readable: results/table-mnist/local/seed-0" in (
        capsys.readouterr().out
    )
    assert main([*listing, "--json"]) == 0
    (entry,) = (e for e in json.loads(capsys.readouterr().out)["experiments"] if e["name"] == "table-mnist")
    assert entry["made_with_other_settings"] == 1
    assert entry["folders_made_with_other_settings"] == ["results/table-mnist/local/seed-0"]


TALKATIVE = """
import json, sys
task = json.loads(sys.stdin.readline())
sys.stderr.write("x" * 200_000 + "\\n")
print(json.dumps({"cell": task["cell"], "accuracy": 0.25, "error": None}))
"""


def test_a_cell_that_complains_at_length_still_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_process, "make_process_command", lambda: [sys.executable, "-c", TALKATIVE])
    answers: list[str] = []
    task = make_cell_task(list_cells(TABLE, tmp_path)[0], None)
    # A daemon: where the answer never comes, the test fails and the process is left to end with its input.
    asking = threading.Thread(target=lambda: answers.append(run_task_in_new_process(task)), daemon=True)
    asking.start()
    asking.join(timeout=60)
    assert [json.loads(answer)["accuracy"] for answer in answers] == [0.25]


def test_the_calibration_does_not_count_what_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting:
        """A simulation that works for no time and waits for the processor."""

        def __init__(self, *_: object) -> None:
            pass

        def start(self) -> object:
            return self

        def rounds(self) -> object:
            for _ in range(2):
                time.sleep(0.5)
                yield

    monkeypatch.setattr(inventory, "Simulation", Waiting)
    clients = inventory.SIZES["digits"].clients / inventory.SIZES["digits"].sample
    # Not through the cache, which other tests read.
    assert inventory._measure_epoch_seconds.__wrapped__("digits", "mlp:4", 10) < 0.4 * clients
