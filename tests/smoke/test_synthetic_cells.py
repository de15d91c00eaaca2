"""The synthetic experiment's cells: refused, cut off, partly run; what is there is reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedlog.experiments import synthetic
from fedlog.experiments.catalog import EXPERIMENTS
from fedlog.experiments.cell_process import Outcome, carry_out, order_of
from fedlog.experiments.cells import Cell, CellState, Experiment, cells

FIGURE = EXPERIMENTS["figure-synthetic"]


def _with(experiment: Experiment, **options: object) -> Experiment:
    """The experiment with other options for every row."""
    rows = (replace(row, spec=replace(row.spec, options={**row.spec.options, **options})) for row in experiment.rows)
    return replace(experiment, rows=tuple(rows))


def _run(cell: Cell) -> Outcome:
    return carry_out(json.loads(order_of(cell, None)))


def _contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_sweep_with_other_settings_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    first = cells(_with(FIGURE, epochs=3), tmp_path)[0]
    assert _run(first).error is None
    before = _contents(first.folder)
    other = cells(_with(FIGURE, epochs=3, learning_rate=0.5), tmp_path)[0]
    assert other.state() is CellState.OTHER
    assert "holds another run" in (_run(other).error or "")
    assert _contents(first.folder) == before
    assert first.state() is CellState.DONE


def _killed_in_call(number: int, found: Callable[..., synthetic.OneRound]) -> Callable[..., synthetic.OneRound]:
    calls = 0

    def one_round(*given: object) -> synthetic.OneRound:
        nonlocal calls
        calls += 1
        if calls == number:
            raise KeyboardInterrupt
        return found(*given)

    return one_round


def test_a_sweep_that_is_made_again_and_cut_off_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = cells(_with(FIGURE, epochs=3), tmp_path)[0]
    assert _run(cell).error is None
    before = _contents(cell.folder)["records.jsonl"]
    with monkeypatch.context() as patched:
        patched.setattr(synthetic, "one_round", _killed_in_call(3, synthetic.one_round))
        with pytest.raises(KeyboardInterrupt):
            _run(cell)
    assert not (cell.folder / "summary.json").exists()
    assert len(cell.records.read_text().splitlines()) == 2
    assert cell.state() is CellState.BEGUN
    assert _run(cell).error is None
    assert cell.state() is CellState.DONE
    assert [line["train_accuracy"] for line in map(json.loads, cell.records.read_text().splitlines())] == [
        line["train_accuracy"] for line in map(json.loads, before.splitlines())
    ]


def test_a_summary_with_half_the_records_is_not_done(tmp_path: Path) -> None:
    cell = cells(_with(FIGURE, epochs=3), tmp_path)[0]
    assert _run(cell).error is None
    whole = cell.records.read_text()
    for left in ("", whole[: len(whole) // 2], whole[:-3]):
        cell.records.write_text(left)
        assert cell.state() is CellState.BEGUN
    cell.records.unlink()
    assert cell.state() is CellState.BEGUN
