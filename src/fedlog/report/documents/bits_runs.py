"""Runs with a way of sending beside the dense ones: what they cost, and what that does to the final accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from fedlog.experiments.tables.bits import ROUNDS
from fedlog.experiments.tables.cost import Cost, cost_to, count_opening_bits
from fedlog.experiments.tables.finished_cells import Collected, RunResult

DENSE = "f32"


@dataclass(frozen=True)
class AccuracyDifference:
    """A mean difference in points, and how far its 95 % interval reaches to either side."""

    mean: float
    reach: float

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ({self.mean - self.reach:+.2f} to {self.mean + self.reach:+.2f})"


def dense_runs(data: str, method: str, found: Collected, whole: Collected) -> dict[int, RunResult]:
    """The runs with f32 by seed: those made for this table, else the first rounds of Table 1's on the same seeds."""
    seeds = found.experiment.seeds
    longer = {run.seed: cut_run(run, ROUNDS[data]) for run in whole.runs.get(method, []) if run.seed in seeds}
    own = {run.seed: run for run in found.runs.get(f"{method}-{DENSE}", [])}
    return dict(sorted({**longer, **own}.items()))


def cut_run(run: RunResult, rounds: int) -> RunResult:
    """The run as it was after so many rounds."""
    kept = run.rounds[:rounds]
    up, down = count_opening_bits(run.rounds, run.summary)
    summary = replace(
        run.summary,
        rounds=len(kept),
        accuracy_mean_over_clients=kept[-1].accuracy_mean_over_clients,
        bits_up=up + sum(record.bits_up for record in kept),
        bits_down=down + sum(record.bits_down for record in kept),
    )
    return RunResult(run.seed, summary, kept)


def share_of_dense(costs: Mapping[int, Cost], dense: Mapping[int, RunResult], threshold: float) -> float | None:
    """The bits to the threshold over those of the dense runs on the same seeds; None where they have none in common."""
    both = [seed for seed in costs if seed in dense]
    full = sum(cost_to(threshold, dense[seed].rounds, dense[seed].summary).both for seed in both)
    return sum(costs[seed].both for seed in both) / full if full else None


def compare_final(runs: Sequence[RunResult], dense: Mapping[int, RunResult]) -> AccuracyDifference | None:
    """The mean difference in final accuracy over pairs of a client and a seed; None where there are too few."""
    found = [
        100 * (a - b)
        for run in runs
        if run.seed in dense
        for a, b in zip(_final(run), _final(dense[run.seed]), strict=True)
        if a is not None and b is not None
    ]
    if len(found) < 2:
        return None
    reach = float(stats.t.ppf(0.975, len(found) - 1)) * float(stats.sem(found))
    return AccuracyDifference(float(np.mean(found)), reach)


def _final(run: RunResult) -> list[float | None]:
    return run.rounds[-1].accuracy_per_client
