"""Run the cells (runs) of a table; skip finished cells, resume interrupted cells, and go on after failures."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedlog.data.catalog import digest_leaf_data
from fedlog.data.data_spec import DataSpec
from fedlog.data.public_data_sets import find_data_folder
from fedlog.errors import InputError
from fedlog.experiments.run.execute import read_spec
from fedlog.experiments.tables.cells import Cell, CellState
from fedlog.experiments.workers.cell_process import Outcome, make_cell_task
from fedlog.experiments.workers.executors import Executor

POLL_SECONDS = 1.0
RECENT_ROUNDS = 10  # the time left is estimated from this many rounds


@dataclass(frozen=True)
class CellSnapshot:
    """How far a cell is: the number of its records so far, the latest accuracy, and the seconds for each record."""

    cell: Cell
    done: int
    accuracy: float | None
    seconds_per_record: float | None

    @property
    def seconds_left(self) -> float | None:
        """The seconds until the cell is done, estimated from its recent rounds; None before the first round ends."""
        return (
            None if self.seconds_per_record is None else (self.cell.record_count - self.done) * self.seconds_per_record
        )


class CellWatcher(Protocol):
    """The interface of an object that is told when cells (runs of a table) start, make progress and end."""

    def on_start(self, to_do: Sequence[Cell], skipped: Sequence[Cell]) -> None:
        """Called once before the start, with the cells that will run and those that are already done."""

    def on_progress(self, cells: Sequence[CellSnapshot]) -> None:
        """Called about every second, with the progress of every cell that was not done at the start."""

    def on_end(self, outcome: Outcome) -> None:
        """Called when a cell has ended."""


def run_cells(cells: Sequence[Cell], executor: Executor, watcher: CellWatcher, data_dir: Path | None) -> list[Outcome]:
    """Run the cells that are not done yet, and return their outcomes; the executor is stopped, even after an error."""
    skipped = [cell for cell in cells if cell.read_state() is CellState.DONE]
    _refuse_other_data(skipped, data_dir)
    to_do = [cell for cell in cells if cell not in skipped]
    outcomes: list[Outcome] = []
    watcher.on_start(to_do, skipped)
    try:
        executor.submit([make_cell_task(cell, data_dir) for cell in to_do])
        while len(outcomes) < len(to_do):
            for outcome in executor.wait(POLL_SECONDS):
                outcomes.append(outcome)
                watcher.on_end(outcome)
            ended = {outcome.cell for outcome in outcomes}
            watcher.on_progress([_read_progress(cell, ended) for cell in to_do])
    finally:
        executor.stop()
    return outcomes


def _refuse_other_data(done: Sequence[Cell], data_dir: Path | None) -> None:
    """Refuse finished cells that were run on other LEAF data, because one table must not mix different data."""
    stored = {cell.name: read_spec(cell.folder) for cell in done}
    known = {name: spec for name, spec in stored.items() if spec.data_sha256 is not None}
    if not known:
        return
    try:
        here = digest_leaf_data(DataSpec("leaf", data_dir=data_dir))
    except InputError:
        return  # no LEAF folder here; a cell that needs one will report it
    for name, spec in known.items():
        if spec.data_sha256 != here:
            raise InputError(
                f"the finished run {name} was run on other records than those of {find_data_folder(data_dir)}",
                hint="give --data-dir the folder that it was run on, or choose another --out",
            )


def _read_progress(cell: Cell, ended: Collection[str]) -> CellSnapshot:
    """Read the progress of a cell from its records; if its name is in `ended`, all its rounds count as done."""
    if cell.name in ended:
        return CellSnapshot(cell, cell.record_count, None, None)
    try:
        lines = cell.records_file.read_text().splitlines()
    except OSError:  # there are none yet
        lines = []
    recent: list[dict[str, float]] = []
    for line in lines[-RECENT_ROUNDS:]:
        with contextlib.suppress(ValueError):  # a line that is being written
            recent.append(json.loads(line))
    seconds = [values["seconds"] for values in recent if "seconds" in values]
    accuracies = [values["accuracy_mean_over_clients"] for values in recent if "accuracy_mean_over_clients" in values]
    return CellSnapshot(
        cell,
        len(lines),
        accuracies[-1] if accuracies else None,
        sum(seconds) / len(seconds) if seconds else None,
    )
