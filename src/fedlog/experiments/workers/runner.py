"""Cells through an executor: what is done is skipped, what was begun goes on, what fails does not stop the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedlog.data.catalog import content_digest
from fedlog.data.data_spec import DataSpec
from fedlog.data.sources import data_folder
from fedlog.errors import InputError
from fedlog.experiments.run.execute import read_spec
from fedlog.experiments.tables.cells import Cell, CellState
from fedlog.experiments.workers.cell_process import Outcome, order_of
from fedlog.experiments.workers.executors import Executor

SECONDS_BETWEEN_LOOKS = 1.0
RECENT = 10  # rounds behind an estimate of the time left


@dataclass(frozen=True)
class CellStanding:
    """How far a cell is."""

    cell: Cell
    done: int
    steps: int
    accuracy: float | None
    seconds_per_step: float | None

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the recent rounds."""
        return None if self.seconds_per_step is None else (self.steps - self.done) * self.seconds_per_step


class Watcher(Protocol):
    """Is called as cells start, go on and end."""

    def on_start(self, to_do: Sequence[Cell], skipped: Sequence[Cell]) -> None:
        """Hear which cells are about to run, and which were done before."""

    def on_progress(self, standings: Sequence[CellStanding]) -> None:
        """Hear how far every cell of this call is."""

    def on_end(self, outcome: Outcome) -> None:
        """Hear that a cell has ended."""


def run_cells(cells: Sequence[Cell], executor: Executor, watcher: Watcher, data_dir: Path | None) -> list[Outcome]:
    """Run the cells that are not done and return how each ended; the executor is always stopped."""
    skipped = [cell for cell in cells if cell.state() is CellState.DONE]
    _refuse_other_records(skipped, data_dir)
    to_do = [cell for cell in cells if cell not in skipped]
    outcomes: list[Outcome] = []
    watcher.on_start(to_do, skipped)
    try:
        executor.submit([order_of(cell, data_dir) for cell in to_do])
        while len(outcomes) < len(to_do):
            for outcome in executor.wait(SECONDS_BETWEEN_LOOKS):
                outcomes.append(outcome)
                watcher.on_end(outcome)
            ended = {outcome.cell for outcome in outcomes}
            watcher.on_progress([_final_progress(cell) if cell.name in ended else progress_of(cell) for cell in to_do])
    finally:
        executor.stop()
    return outcomes


def _refuse_other_records(done: Sequence[Cell], data_dir: Path | None) -> None:
    """Refuse cells that were run on another LEAF folder than the one at hand: they must not share a table."""
    stored = {cell.name: read_spec(cell.folder) for cell in done}
    known = {name: spec for name, spec in stored.items() if spec.data_sha256 is not None}
    if not known:
        return
    try:
        here = content_digest(DataSpec("leaf", data_dir=data_dir))
    except InputError:
        return  # no folder to compare them with; a cell that needs one will say so
    for name, spec in known.items():
        if spec.data_sha256 != here:
            raise InputError(
                f"{name} was run on other records than those of {data_folder(data_dir)}",
                hint="name the folder it was run on by --data-dir, or choose another --out",
            )


def _final_progress(cell: Cell) -> CellStanding:
    return CellStanding(cell, cell.steps, cell.steps, None, None)


def progress_of(cell: Cell) -> CellStanding:
    """How far the cell is, by its records."""
    try:
        lines = cell.records.read_text().splitlines()
    except OSError:
        return CellStanding(cell, 0, cell.steps, None, None)
    recent = [_values(line) for line in lines[-RECENT:]]
    seconds = [values["seconds"] for values in recent if "seconds" in values]
    accuracies = [values["accuracy_mean_over_clients"] for values in recent if "accuracy_mean_over_clients" in values]
    return CellStanding(
        cell,
        len(lines),
        cell.steps,
        accuracies[-1] if accuracies else None,
        sum(seconds) / len(seconds) if seconds else None,
    )


def _values(line: str) -> dict[str, float]:
    try:
        values: dict[str, float] = json.loads(line)
    except ValueError:  # being written
        return {}
    return values
