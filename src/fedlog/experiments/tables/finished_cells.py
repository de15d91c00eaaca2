"""Read the finished cells (runs) of an experiment, and count the bits that each needs to reach an accuracy.

Cells that were run with other settings are counted, and otherwise ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedlog.engine.simulate.simulator import ACCURACY_ROUNDING, RoundRecord, reaches_target
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import read_summary
from fedlog.experiments.run.records import Summary, count_bits_so_far
from fedlog.experiments.tables.cells import Cell, CellState, Experiment, ExperimentKind, list_cells
from fedlog.experiments.tables.synthetic import IterationRecord, read_sweep
from fedlog.wire.ledger import Direction


@dataclass(frozen=True)
class Cost:
    """The bits sent by the end of a round, and whether that round reached the accuracy threshold."""

    bits_up: int
    bits_down: int
    round: int
    reached: bool

    @property
    def bits_both_ways(self) -> int:
        """The bits up and down together."""
        return self.bits_up + self.bits_down


@dataclass(frozen=True)
class RunResult:
    """A finished run: its seed, its summary and the records of its rounds."""

    seed: int
    summary: Summary
    rounds: list[RoundRecord]

    @property
    def bits_before_round_1(self) -> tuple[int, int]:
        """The bits (up, down) sent before round 1; they are in the totals of the summary and in no round."""
        opening = self.summary.bits_opening
        if opening:
            up, down = (sum(n for kind, n in opening.items() if kind.endswith(f" {way}")) for way in Direction)
            return up, down
        # Summaries of older versions, and of runs without an opening, do not list these bits.
        return (
            self.summary.bits_up - sum(record.bits_up for record in self.rounds),
            self.summary.bits_down - sum(record.bits_down for record in self.rounds),
        )

    @property
    def bits_so_far_by_round(self) -> list[int]:
        """The bits sent by the end of each round, up and down together, with those sent before round 1."""
        return count_bits_so_far(self.rounds, sum(self.bits_before_round_1))

    def compute_cost_to_reach(self, threshold: float) -> Cost:
        """Return the bits sent until a round reaches this accuracy; if none does, until the most accurate round."""
        reaching = (record for record in self.rounds if reaches_target(record.accuracy_mean_over_clients, threshold))
        first = next(reaching, None)
        last = first or max(self.rounds, key=lambda record: record.accuracy_mean_over_clients)
        sent = [record for record in self.rounds if record.round <= last.round]
        up, down = self.bits_before_round_1
        up, down = up + sum(record.bits_up for record in sent), down + sum(record.bits_down for record in sent)
        return Cost(up, down, last.round, first is not None)


def choose_threshold(best_accuracies: Iterable[float]) -> int | None:
    """Choose the threshold by the paper's rule: the largest whole per cent that every given run reaches.

    `best_accuracies` has the accuracy of the best round of each run of the `COMPETITIVE_METHODS`. None without runs.
    """
    found = list(best_accuracies)
    return math.floor(100 * (min(found) + ACCURACY_ROUNDING)) if found else None


VERIFIED = "verified.json"


@dataclass(frozen=True)
class VerificationResult:
    """What `fedlog reproduce --verify` found for one run: how many rounds ran again, and the first that differs."""

    rounds: int
    first_difference: int | None  # the first round with other results; None if all rounds repeat
    commit: str
    processor: str = ""  # on which the rounds ran again; older outcomes do not name it
    processor_of_record: str = ""


def read_verification_results(folder: Path) -> dict[str, VerificationResult]:
    """Read the results for all runs of an experiment that were verified, by `ROW/seed-N`; empty if none was."""
    return records.read_json_file_as(folder / VERIFIED, dict[str, VerificationResult], "the verification") or {}


@dataclass(frozen=True)
class FinishedRuns:
    """The finished runs of an experiment, by row, and the folders of runs with other settings (`others`).

    The synthetic experiment has `sweeps` instead of `runs`: one round with 1, 2, ... local iterations, by row and seed.
    """

    experiment: Experiment
    folder: Path
    runs: dict[str, list[RunResult]]
    sweeps: dict[str, dict[int, list[IterationRecord]]]
    states: dict[CellState, int]
    others: tuple[Path, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no cell is finished."""
        return not self.states[CellState.DONE]

    def find_final_accuracies(self, row: str) -> dict[int, float]:
        """Return the row's accuracy after the final round in per cent, by seed."""
        return {run.seed: 100 * run.summary.accuracy_mean_over_clients for run in self.runs[row]}

    def find_accuracies_after_round(self, row: str, number: int) -> dict[int, float]:
        """Return the row's accuracy after this round in per cent, by seed."""
        return {run.seed: 100 * run.rounds[number - 1].accuracy_mean_over_clients for run in self.runs[row]}


def collect_runs(experiment: Experiment, out: Path) -> FinishedRuns:
    """Read all finished runs of the experiment, also those with seeds that the experiment does not list."""
    states = dict.fromkeys(CellState, 0)
    runs: dict[str, list[RunResult]] = {row.name: [] for row in experiment.rows}
    sweeps: dict[str, dict[int, list[IterationRecord]]] = {row.name: {} for row in experiment.rows}
    others = []
    for cell in _list_all_cells(experiment, out):
        state = cell.read_state()
        states[state] += 1
        if state is CellState.OTHER:
            others.append(cell.folder)
        if state is not CellState.DONE:
            continue
        if experiment.kind is ExperimentKind.SYNTHETIC:
            sweeps[cell.row.name][cell.seed] = read_sweep(cell.folder)
        else:
            run = RunResult(cell.seed, read_summary(cell.folder), records.read_rounds(cell.records_file))
            runs[cell.row.name].append(run)
    return FinishedRuns(experiment, out / experiment.name, runs, sweeps, states, tuple(others))


def _list_all_cells(experiment: Experiment, out: Path) -> list[Cell]:
    """List the cells (runs) of the experiment, and cells with other seeds that are on disk."""
    known = list_cells(experiment, out)
    listed = {cell.folder for cell in known}
    for row in experiment.rows:
        for folder in sorted((out / experiment.name / row.name).glob("seed-*")):
            number = folder.name.removeprefix("seed-")
            if folder.is_dir() and folder not in listed and number.isdigit():
                known.append(Cell(experiment, row, int(number), folder))
    return known
