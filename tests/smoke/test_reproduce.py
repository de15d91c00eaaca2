"""The runner of the paper's experiments: cells that are done, skipped, failed, killed and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fedlog.cli.main import main
from fedlog.errors import InputError
from fedlog.experiments.run import records
from fedlog.experiments.tables.catalog import EXPERIMENTS, list_experiments_with_versions
from fedlog.experiments.tables.cells import Cell, CellState, Experiment, ExperimentKind, TableRow, list_cells
from fedlog.experiments.tables.inventory import estimate_seconds
from fedlog.experiments.tables.paper import parse_printed_rows
from fedlog.experiments.workers.cell_process import Outcome, execute_task
from fedlog.experiments.workers.executors import LocalProcesses, make_executor
from fedlog.experiments.workers.runner import CellSnapshot, run_cells
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec


class Here:
    """An executor that carries out tasks in this process, which spares starting another."""

    def __init__(self) -> None:
        self._outcomes: list[Outcome] = []

    def submit(self, tasks: Sequence[str]) -> None:
        self._outcomes = [execute_task(json.loads(task)) for task in tasks]

    def wait(self, seconds: float) -> list[Outcome]:
        ended, self._outcomes = self._outcomes, []
        return ended

    def stop(self) -> None:
        pass


class Quiet:
    """A watcher that remembers what it was told."""

    def __init__(self) -> None:
        self.skipped: list[str] = []
        self.seen: list[CellSnapshot] = []

    def on_start(self, to_do: Sequence[Cell], skipped: Sequence[Cell]) -> None:
        self.skipped = [cell.name for cell in skipped]

    def on_progress(self, standings: Sequence[CellSnapshot]) -> None:
        self.seen = list(standings)

    def on_end(self, outcome: Outcome) -> None:
        pass


def digits(*methods: str, rounds: int = 2, epochs: int = 1) -> Experiment:
    """A table on the data that comes with the package."""
    base = RunSpec(data="digits", rounds=rounds, options={"epochs": epochs})
    rows = tuple(
        TableRow(m, m, RunSpec(method=m, data=base.data, rounds=rounds, options=base.options)) for m in methods
    )
    return Experiment("table-digits", "digits", ExperimentKind.TABLE, rows, (0,), threshold=50)


def test_a_failed_cell_does_not_stop_the_others_and_done_ones_are_skipped(tmp_path: Path) -> None:
    experiment = digits("fedlog", "local")
    broken = TableRow("broken", "broken", RunSpec(method="fedlog", data="mnist"))
    wanted = list_cells(Experiment("x", "x", ExperimentKind.TABLE, (broken, *experiment.rows), (0,)), tmp_path)
    watcher = Quiet()
    outcomes = {o.cell: o for o in run_cells(wanted, LocalProcesses(2), watcher, tmp_path / "no data")}
    assert "missing file" in (outcomes["broken seed 0"].error or "")
    assert outcomes["fedlog seed 0"].error is None
    assert outcomes["local seed 0"].error is None
    folder = tmp_path / "x" / "fedlog" / "seed-0"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "records.jsonl", "summary.json"]
    assert not list(tmp_path.rglob("*.lock"))
    assert str(tmp_path) not in "".join(path.read_text() for path in folder.iterdir())

    again = [cell for cell in wanted if cell.row.name != "broken"]
    assert run_cells(again, LocalProcesses(1), watcher, None) == []
    assert watcher.skipped == ["fedlog seed 0", "local seed 0"]


RUNNER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_reproduce import Quiet, digits
from fedlog.experiments.tables.cells import list_cells
from fedlog.experiments.workers.executors import LocalProcesses
from fedlog.experiments.workers.runner import run_cells
run_cells(list_cells(digits("fedlog", rounds=12, epochs=2), Path({out!r})), LocalProcesses(1), Quiet(), None)
"""


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of child processes")
def test_a_killed_runner_takes_its_cells_along_and_the_next_one_goes_on(tmp_path: Path) -> None:
    cell = list_cells(digits("fedlog", rounds=12, epochs=2), tmp_path)[0]
    script = RUNNER.format(tests=str(Path(__file__).parent), out=str(tmp_path))
    runner = subprocess.Popen([sys.executable, "-c", script])
    _wait(lambda: len(records.read_rounds(cell.records_file)) >= 3 or runner.poll() is not None)
    assert runner.poll() is None
    children = _children(runner.pid)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    _wait(lambda: not any(_alive(child) for child in children))
    before = records.read_rounds(cell.records_file)
    assert 3 <= len(before) < 12
    assert cell.read_state() is CellState.BEGUN

    assert run_cells([cell], LocalProcesses(1), Quiet(), None)[0].error is None
    after = records.read_rounds(cell.records_file)
    assert [record.round for record in after] == list(range(1, 13))
    # At most the round that was under way, or whose checkpoint was, is made again; the numbers are the same.
    kept = before[: len(before) - 1]
    assert [record.correct_per_client for record in after[: len(kept)]] == [r.correct_per_client for r in kept]
    assert [record.seconds for record in after[: len(kept)]] == [record.seconds for record in kept]
    assert cell.read_state() is CellState.DONE


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_records_of_other_settings_are_not_taken_for_these(tmp_path: Path) -> None:
    first = list_cells(digits("local", rounds=1), tmp_path)
    assert run_cells(first, Here(), Quiet(), None)[0].error is None
    other = list_cells(digits("local", rounds=2), tmp_path)
    assert other[0].read_state() is CellState.OTHER
    assert "holds a run with other settings" in (run_cells(other, Here(), Quiet(), None)[0].error or "")
    assert first[0].read_state() is CellState.DONE


def test_another_number_of_rounds_lives_in_a_folder_of_its_own(tmp_path: Path) -> None:
    table = EXPERIMENTS["table-mnist"]
    (tmp_path / "table-mnist-3-rounds").mkdir()
    assert "table-mnist-3-rounds" in [experiment.name for experiment in list_experiments_with_versions(tmp_path)]
    short = list_cells(table, tmp_path, rows=("fedlog",), seeds=(0,), rounds=3)
    assert short[0].folder == tmp_path / "table-mnist-3-rounds" / "fedlog" / "seed-0"
    assert short[0].spec.rounds == 3


def test_every_specification_resolves_and_its_cells_differ() -> None:
    assert len(EXPERIMENTS) >= 13
    for experiment in EXPERIMENTS.values():
        found = list_cells(experiment, Path("results"))
        assert len({cell.folder for cell in found}) == sum(
            len(row.seeds or experiment.seeds) for row in experiment.rows
        )
        digests = {resolve(row.spec).digest for row in experiment.rows}
        assert len(digests) == len(experiment.rows), experiment.name


def test_the_printed_tables_are_whole() -> None:
    for name in ("table-mnist", "table-cifar10", "table-cifar100"):
        rows = EXPERIMENTS[name].rows
        assert sum(row.printed is not None for row in rows) == 11
        assert [row.name for row in rows if row.printed is None] == ["local", "pooled"]
    printed = parse_printed_rows("fedavg 89.76 0.69 ⇓ 3.45 0.02 Gb ⇑\n")["fedavg"]
    assert (printed.accuracy, printed.cost, printed.accuracy_arrow.value) == (89.76, 3.45e9, "⇓")


def test_selection_sees_no_test_record_and_no_seed_of_a_table() -> None:
    grids = [experiment for experiment in EXPERIMENTS.values() if experiment.kind is ExperimentKind.GRID]
    assert len(grids) >= 5
    tables = {seed for e in EXPERIMENTS.values() if e.kind is ExperimentKind.TABLE for seed in e.seeds}
    for experiment in grids:
        assert not tables & set(experiment.seeds)
        for row in experiment.rows:
            on_split = row.spec.judge == "validation" and row.spec.validation_fraction > 0
            assert on_split or row.spec.data == "mnist-selection"


def test_the_list_says_what_is_missing_and_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "--list", "--json", "--out", str(tmp_path), "--data-dir", str(tmp_path)]
    assert main(arguments) == 0
    told = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)["experiments"]}
    assert set(told) == set(EXPERIMENTS)
    assert "fedlog data fetch mnist" in told["table-mnist"]["missing"]
    assert told["table-mnist"]["hours_left"] is None
    assert told["table-mnist"]["cells"] == 130
    assert told["figure-synthetic"]["missing"] is None
    assert told["figure-synthetic"]["done"] == 0
    assert told["figure-synthetic"]["hours_left"] > 0


def test_a_round_is_timed_without_the_data() -> None:
    cell = list_cells(digits("fedlog", rounds=4, epochs=3), Path("nowhere"))[0]
    assert 0 < estimate_seconds(cell, []) < 3600


def test_unknown_names_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table-mnits"]) == 2
    assert "did you mean table-mnist?" in capsys.readouterr().err
    assert main(["reproduce", "table-mnist", "--methods", "fedlg", "--out", str(tmp_path)]) == 2
    assert "did you mean fedlog?" in capsys.readouterr().err
    assert main(["reproduce", "table-mnist", "--seeds", "a", "--out", str(tmp_path)]) == 2
    with pytest.raises(InputError, match="unknown executor"):
        make_executor("ray://somewhere", 1, tmp_path)


def test_the_command_reports_missing_data_and_exits_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "natural-users", "--methods", "local", "--seeds", "0", "--quiet", "--json"]
    assert main([*arguments, "--out", str(tmp_path), "--data-dir", str(tmp_path / "empty")]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["cells"][0]["state"] == "failed"
    assert "missing file" in told["cells"][0]["error"]


def test_the_synthetic_experiment_runs_is_reported_and_documented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedlog.cli.reproduce.make_executor", lambda *_: Here())
    out = tmp_path / "results"
    assert main(["reproduce", "figure-synthetic", "--seeds", "0", "--out", str(out), "--quiet"]) == 0
    assert len((out / "figure-synthetic" / "fedlog" / "seed-0" / "records.jsonl").read_text().splitlines()) == 30
    assert main(["report", str(out)]) == 0
    assert "figure-synthetic" in (out / "report.html").read_text()
    assert main(["docs", "--results", str(out), "--out", str(tmp_path / "docs")]) == 0
    assert "not run" in (tmp_path / "docs" / "reproduction.md").read_text()
    page = (tmp_path / "docs" / "reproduction" / "figure-synthetic.md").read_text()
    assert "2 of 12 cells run" in page
    assert "../../results/figure-synthetic/figure.svg" in page
    written = (out / "figure-synthetic" / "figure.svg").read_text()
    assert main(["docs", "--results", str(out), "--out", str(tmp_path / "docs")]) == 0
    assert (out / "figure-synthetic" / "figure.svg").read_text() == written
    assert main(["docs", "--results", str(tmp_path / "nowhere")]) == 2
    capsys.readouterr()


def test_quiet_silences_progress_and_not_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedlog.cli.reproduce.make_executor", lambda *_: Here())
    arguments = ["reproduce", "natural-users", "--methods", "local", "--seeds", "0", "--jobs", "1", "--quiet"]
    assert main([*arguments, "--out", str(tmp_path / "out"), "--data-dir", str(tmp_path / "empty")]) == 1
    told = capsys.readouterr()
    assert "0 of 1 cells done" in told.out
    assert "failed: " in told.err
    assert "missing" in told.err
