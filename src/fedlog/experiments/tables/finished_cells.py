"""Read the finished cells of an experiment from its folder; those made with other settings are counted, not used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import read_summary
from fedlog.experiments.run.records import Summary
from fedlog.experiments.tables.cells import Cell, CellState, Experiment, Shape, list_cells
from fedlog.experiments.tables.synthetic import IterationRecord, read_sweep


@dataclass(frozen=True)
class RunResult:
    """One finished run."""

    seed: int
    summary: Summary
    rounds: list[RoundRecord]


VERIFIED = "verified.json"


@dataclass(frozen=True)
class Verification:
    """The outcome of `fedlog reproduce --verify` for one cell."""

    rounds: int
    first_difference: int | None  # the first round with other results; None if all rounds repeat
    commit: str


def read_verifications(folder: Path) -> dict[str, Verification]:
    """The outcomes for the cells of an experiment that were run again, by `ROW/seed-N`."""
    return records.read_file_as(folder / VERIFIED, dict[str, Verification], "the verification") or {}


@dataclass(frozen=True)
class Collected:
    """The finished runs of an experiment by row; the synthetic experiment has `sweeps` instead of `runs`."""

    experiment: Experiment
    folder: Path
    runs: dict[str, list[RunResult]]
    sweeps: dict[str, dict[int, list[IterationRecord]]]
    states: dict[CellState, int]
    others: tuple[Path, ...]  # folders that were made with other settings

    @property
    def is_empty(self) -> bool:
        """Whether no cell is finished."""
        return not self.states[CellState.DONE]

    def final(self, row: str) -> dict[int, float]:
        """The accuracy after the final round in per cent, by seed."""
        return {run.seed: 100 * run.summary.accuracy_mean_over_clients for run in self.runs[row]}


def collect(experiment: Experiment, out: Path) -> Collected:
    """All finished runs of the experiment, also on seeds that it does not list."""
    states = dict.fromkeys(CellState, 0)
    runs: dict[str, list[RunResult]] = {row.name: [] for row in experiment.rows}
    sweeps: dict[str, dict[int, list[IterationRecord]]] = {row.name: {} for row in experiment.rows}
    others = []
    for cell in _list_all_cells(experiment, out):
        state = cell.state()
        states[state] += 1
        if state is CellState.OTHER:
            others.append(cell.folder)
        if state is not CellState.DONE:
            continue
        if experiment.shape is Shape.SYNTHETIC:
            sweeps[cell.row.name][cell.seed] = read_sweep(cell.folder)
        else:
            run = RunResult(cell.seed, read_summary(cell.folder), records.read(cell.records))
            runs[cell.row.name].append(run)
    return Collected(experiment, out / experiment.name, runs, sweeps, states, tuple(others))


def _list_all_cells(experiment: Experiment, out: Path) -> list[Cell]:
    """The cells that the experiment lists, and cells with other seeds that are on disk."""
    known = list_cells(experiment, out)
    listed = {cell.folder for cell in known}
    for row in experiment.rows:
        for folder in sorted((out / experiment.name / row.name).glob("seed-*")):
            number = folder.name.removeprefix("seed-")
            if folder.is_dir() and folder not in listed and number.isdigit():
                known.append(Cell(experiment, row, int(number), folder))
    return known
