"""The runs of a comparison: in this process one after another, or side by side through an executor."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fedlog.data.federation import Federation
from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.errors import FedlogError, InputError
from fedlog.experiments.compare.variants import ComparedRun
from fedlog.experiments.run import records
from fedlog.experiments.run.callbacks import Callback, Callbacks
from fedlog.experiments.run.execute import RECORDS
from fedlog.experiments.run.scores import LastLoaded, execute_and_score
from fedlog.experiments.workers.cell_process import SCORED
from fedlog.experiments.workers.executors import Executor
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import as_plain

SECONDS_BETWEEN_LOOKS = 0.5

Failures = dict[str, str]  # why a run failed, by its name


class BarOfRounds(Protocol):
    """Is told how many rounds of all runs are done."""

    def begin(self, rounds: int) -> None:
        """Show how many rounds there are in all."""

    def advance(self, done: int, said: str) -> None:
        """Show that so many rounds are done."""


def count_rounds(run: ComparedRun, federation: Federation | None) -> int:
    """How many rounds the run has."""
    return resolve(run.spec, federation).settings.rounds


def run_here(
    runs: Sequence[ComparedRun],
    federations: Callable[[int], Federation | None],
    bar: BarOfRounds,
    callbacks: Sequence[Callback] = (),
) -> Failures:
    """Carry the runs out one after another; `federations` returns the records of a seed, or None for named data."""
    failed: Failures = {}
    given = {run.seed: federations(run.seed) for run in runs}
    rounds = [_count_or_record(run, given[run.seed], failed) for run in runs]
    bar.begin(sum(rounds))
    done, data = 0, LastLoaded()
    for run, length in zip(runs, rounds, strict=True):
        if run.name in failed:
            continue
        counter = _Counter(bar, done, run.name)
        try:
            execute_and_score(run.spec, run.folder, Callbacks([counter, *callbacks]), given[run.seed], data.load)
        except FedlogError as error:
            failed[run.name] = error.one_line
        done += length
        bar.advance(done, run.name)
    return failed


def _count_or_record(run: ComparedRun, federation: Federation | None, failed: Failures) -> int:
    """How many rounds the run has; none for settings that contradict each other, which count as its failure."""
    try:
        return count_rounds(run, federation)
    except InputError as error:
        failed[run.name] = error.one_line
        return 0


class _Counter(Callback):
    """Tells the bar of each round of one run."""

    def __init__(self, bar: BarOfRounds, before: int, name: str) -> None:
        self._bar, self._before, self._name = bar, before, name

    def round_ended(self, record: RoundRecord) -> None:
        """Count the round."""
        self._bar.advance(self._before + record.round, self._name)


def run_side_by_side(
    runs: Sequence[ComparedRun], executor: Executor, orders: int, bar: BarOfRounds, data_dir: Path | None
) -> Failures:
    """Carry the runs out through the executor, which is stopped at the end, whatever happens."""
    failed: Failures = {}
    rounds = {run.folder: _count_or_record(run, None, failed) for run in runs}
    runs = [run for run in runs if run.name not in failed]
    bar.begin(sum(rounds.values()))
    dealt = deal_out(runs, orders)
    ended = 0
    try:
        executor.submit([order_of(part, f"part {at}", data_dir) for at, part in enumerate(dealt, start=1)])
        while ended < len(dealt):
            for outcome in executor.wait(SECONDS_BETWEEN_LOOKS):
                ended += 1
                failed.update(outcome.failed)
                if outcome.error is not None:
                    part = dealt[int(outcome.cell.removeprefix("part ")) - 1]
                    failed.update({run.name: outcome.error for run in part if not (run.folder / RECORDS).exists()})
            done = sum(min(records.count(folder / RECORDS), length) for folder, length in rounds.items())
            bar.advance(done, f"{ended} of {len(dealt)} parts done" if ended else "")
    finally:
        executor.stop()
    return failed


def deal_out(runs: Sequence[ComparedRun], orders: int) -> list[list[ComparedRun]]:
    """The runs in so many parts of about the same length: each has runs of every method, and few rows to read twice."""
    seeds = list(dict.fromkeys(run.seed for run in runs))
    parts: list[list[ComparedRun]] = [[] for _ in range(orders)]
    for turn, seed in enumerate(seeds):
        for at, run in enumerate(run for run in runs if run.seed == seed):
            # One further with every seed, so that no part has one method only.
            parts[(at + turn) % orders].append(run)
    return [part for part in parts if part]


def order_of(runs: Sequence[ComparedRun], name: str, data_dir: Path | None) -> str:
    """Several runs as one line of JSON, complete for a process anywhere that sees the same folder."""
    told: list[Mapping[str, object]] = [
        {
            "name": run.name,
            "folder": str(run.folder.resolve()),
            # One thread and one process each: the runs themselves are side by side.
            "spec": as_plain(replace(run.spec, jobs=1, threads=1)),
        }
        for run in runs
    ]
    where = None if data_dir is None else str(data_dir.resolve())
    return json.dumps({"cell": name, "work": SCORED, "runs": told, "data_dir": where})
