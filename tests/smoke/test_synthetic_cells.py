"""Cells of the synthetic experiment that are refused, interrupted or missing, and reports of those that are there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fedlog.cli.main import main
from fedlog.experiments.tables import synthetic
from fedlog.experiments.tables.catalog import EXPERIMENTS
from fedlog.experiments.tables.cells import Cell, CellState, Experiment, list_cells
from fedlog.experiments.tables.finished_cells import FinishedRuns, collect_runs
from fedlog.experiments.workers.cell_process import Outcome, execute_task, make_cell_task
from fedlog.files.json_text import write_json
from fedlog.report.paper import figures
from fedlog.report.paper.grid_tables import make_synthetic_table
from fedlog.settings.spec import convert_spec_to_json

FIGURE = EXPERIMENTS["figure-synthetic"]


def _with(experiment: Experiment, **options: object) -> Experiment:
    """The experiment with other options for every row."""
    rows = (replace(row, spec=replace(row.spec, options={**row.spec.options, **options})) for row in experiment.rows)
    return replace(experiment, rows=tuple(rows))


def _run(cell: Cell) -> Outcome:
    return execute_task(json.loads(make_cell_task(cell, None)))


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_sweep_with_other_settings_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    first = list_cells(_with(FIGURE, epochs=3), tmp_path)[0]
    assert _run(first).error is None
    before = _contents(first.folder)
    other = list_cells(_with(FIGURE, epochs=3, learning_rate=0.5), tmp_path)[0]
    assert other.read_state() is CellState.OTHER
    assert "holds a run with other settings" in (_run(other).error or "")
    assert _contents(first.folder) == before
    assert first.read_state() is CellState.DONE


def _killed_in_call(number: int, found: Callable[..., synthetic.RoundModels]) -> Callable[..., synthetic.RoundModels]:
    calls = 0

    def one_round(*given: object) -> synthetic.RoundModels:
        nonlocal calls
        calls += 1
        if calls == number:
            raise KeyboardInterrupt
        return found(*given)

    return one_round


def test_a_sweep_that_is_made_again_and_cut_off_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = list_cells(_with(FIGURE, epochs=3), tmp_path)[0]
    assert _run(cell).error is None
    before = _contents(cell.folder)["records.jsonl"]
    with monkeypatch.context() as patched:
        patched.setattr(synthetic, "run_one_round", _killed_in_call(3, synthetic.run_one_round))
        with pytest.raises(KeyboardInterrupt):
            _run(cell)
    assert not (cell.folder / "summary.json").exists()
    assert len(cell.records_file.read_text().splitlines()) == 2
    assert cell.read_state() is CellState.BEGUN
    assert _run(cell).error is None
    assert cell.read_state() is CellState.DONE
    assert [line["train_accuracy"] for line in map(json.loads, cell.records_file.read_text().splitlines())] == [
        line["train_accuracy"] for line in map(json.loads, before.splitlines())
    ]


def test_a_summary_with_half_the_records_is_not_done(tmp_path: Path) -> None:
    cell = list_cells(_with(FIGURE, epochs=3), tmp_path)[0]
    assert _run(cell).error is None
    whole = cell.records_file.read_text()
    for left in ("", whole[: len(whole) // 2], whole[:-3]):
        cell.records_file.write_text(left)
        assert cell.read_state() is CellState.BEGUN
    cell.records_file.unlink()
    assert cell.read_state() is CellState.BEGUN


def _write_sweep(cell: Cell) -> None:
    """A finished sweep with made-up numbers."""
    cell.folder.mkdir(parents=True)
    write_json(cell.folder / "config.json", {"spec": convert_spec_to_json(cell.spec)})
    lines = (synthetic.IterationRecord(at + 1, 0.5 + at / 100, 0.5, 1, 1, 0.0) for at in range(cell.record_count))
    cell.records_file.write_text("".join(json.dumps(asdict(line)) + "\n" for line in lines))
    write_json(cell.folder / "summary.json", {})
    if cell.seed == synthetic.PLOTTED_SEED:
        points, head = [[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
        features = dict.fromkeys(("points", "features_before", "features_after"), points)
        heads = dict.fromkeys(("head_before", "head_local", "head_after"), head)
        write_json(cell.folder / synthetic.REPRESENTATIONS, [{"labels": [0, 1], **features, **heads}] * 2)


def _found(out: Path, *made: tuple[str, int]) -> FinishedRuns:
    for row, seed in made:
        _write_sweep(list_cells(FIGURE, out, rows=(row,), seeds=(seed,))[0])
    return collect_runs(FIGURE, out)


def test_one_row_alone_is_drawn_and_the_other_is_named_as_missing(tmp_path: Path) -> None:
    found = _found(tmp_path, ("fedlog", 0))
    drawn = figures.draw_synthetic_panels(found)
    assert "FedLog: the server's separator" in drawn
    assert drawn.count("not run: LG-FedAvg 1, seed 0") == 1
    assert drawn.count("LG-FedAvg 1: not run") == 2  # in both panels of accuracies
    assert "not run: FedLog" not in drawn
    table = make_synthetic_table(found)
    assert table.title == "Accuracy, mean over clients and seeds (FedLog: 1, LG-FedAvg 1: 0; both: 0)"
    assert table.rows[0] == ("1", "50.0", "not run", "50.0", "not run", "no seed in common", "no seed in common")


def test_the_raw_data_are_drawn_from_whichever_row_is_there(tmp_path: Path) -> None:
    drawn = figures.draw_synthetic_panels(_found(tmp_path, ("lg-fedavg-1", 0)))
    assert "client 0 class 1" in drawn
    assert drawn.count("not run: FedLog, seed 0") == 2


def test_without_the_drawn_seed_the_accuracies_are_left(tmp_path: Path) -> None:
    found = _found(tmp_path, ("fedlog", 1), ("lg-fedavg-1", 1))
    drawn = figures.draw_synthetic_panels(found)
    assert drawn.count("not run: ") == 4
    assert "LG-FedAvg 1: not run" not in drawn
    assert make_synthetic_table(found).title.endswith("and 1 seeds")


def test_a_drawing_made_with_other_settings_is_not_shown(tmp_path: Path) -> None:
    _write_sweep(list_cells(_with(FIGURE, learning_rate=0.5), tmp_path)[0])
    assert "not run: FedLog, seed 0" in figures.draw_synthetic_panels(_found(tmp_path, ("fedlog", 1)))


def test_rows_without_a_common_seed_are_reported_and_documented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    _found(out, ("fedlog", 0), ("lg-fedavg-1", 1), ("lg-fedavg-1", 2))
    assert main(["report", str(out)]) == 0
    assert main(["docs", "--results", str(out), "--out", str(tmp_path / "docs")]) == 0
    page = tmp_path / "docs" / "reproduction" / "figure-synthetic.md"
    assert "FedLog: 1, LG-FedAvg 1: 2; both: 0" in page.read_text()
    assert (out / "figure-synthetic" / "figure.svg").exists()
    capsys.readouterr()
