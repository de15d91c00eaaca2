"""Execute the runs of a comparison: one after another in this process, or in parallel through an executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fedlog.data.catalog import load_federation
from fedlog.data.federation import Federation
from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.errors import FedlogError, InputError
from fedlog.experiments.compare.variants import ComparedRun
from fedlog.experiments.run import records
from fedlog.experiments.run.callbacks import Callback
from fedlog.experiments.run.execute import RECORDS
from fedlog.experiments.run.scores import execute_and_score
from fedlog.experiments.workers.cell_process import RUN_AND_SCORE, make_task
from fedlog.experiments.workers.executors import Executor
from fedlog.settings.resolve import resolve

POLL_SECONDS = 0.5

Failures = dict[str, str]  # why a run failed, by its name
ShowRounds = Callable[[int, int, str], None]  # is called with the rounds done, those of all runs, and a short text


def run_one_by_one(
    runs: Sequence[ComparedRun],
    federations: Callable[[int], Federation | None],
    show: ShowRounds,
    callbacks: Sequence[Callback] = (),
) -> Failures:
    """Execute the runs one after another; return the error messages of failed runs by the name of the run.

    `federations` returns the federation of a seed, or None if the data are given by name.
    """
    failed: Failures = {}
    given = {run.seed: federations(run.seed) for run in runs}
    rounds = [_count_rounds(run, given[run.seed], failed) for run in runs]
    show(0, sum(rounds), "")
    done, load = 0, lru_cache(maxsize=1)(load_federation)  # consecutive runs on the same data read them once
    for run, length in zip(runs, rounds, strict=True):
        if run.name in failed:
            continue
        counter = _RoundCounter(show, done, sum(rounds), run.name)
        try:
            execute_and_score(run.spec, run.folder, [counter, *callbacks], given[run.seed], load)
        except FedlogError as error:
            failed[run.name] = error.one_line
        done += length
        show(done, sum(rounds), run.name)
    return failed


def _count_rounds(run: ComparedRun, federation: Federation | None, failed: Failures) -> int:
    """Return the number of rounds of a run; if its settings are invalid, add the error to `failed` and return 0."""
    try:
        return resolve(run.spec, federation).settings.rounds
    except InputError as error:
        failed[run.name] = error.one_line
        return 0


class _RoundCounter(Callback):
    """A callback that adds the rounds of one run to the `before` rounds of earlier runs, and shows the sum."""

    def __init__(self, show: ShowRounds, before: int, total: int, name: str) -> None:
        self._show, self._before, self._total, self._name = show, before, total, name

    def round_ended(self, record: RoundRecord) -> None:
        """Show how many rounds of all runs together are done."""
        self._show(self._before + record.round, self._total, self._name)


def run_in_parallel(
    runs: Sequence[ComparedRun], executor: Executor, tasks: int, show: ShowRounds, data_dir: Path | None
) -> Failures:
    """Execute the runs in parallel, in this many tasks of an executor; return the errors of failed runs by name.

    The executor is stopped at the end, also after an error.
    """
    failed: Failures = {}
    rounds = {run.folder: _count_rounds(run, None, failed) for run in runs}
    runs = [run for run in runs if run.name not in failed]
    show(0, sum(rounds.values()), "")
    dealt = split_into_groups(runs, tasks)
    ended = 0
    try:
        executor.submit([_make_task(part, f"part {at}", data_dir) for at, part in enumerate(dealt, start=1)])
        while ended < len(dealt):
            for outcome in executor.wait(POLL_SECONDS):
                ended += 1
                failed.update(outcome.failed)
                if outcome.error is not None:
                    part = dealt[int(outcome.cell.removeprefix("part ")) - 1]
                    failed.update({run.name: outcome.error for run in part if not (run.folder / RECORDS).exists()})
            done = sum(min(records.count_rounds(folder / RECORDS), length) for folder, length in rounds.items())
            show(done, sum(rounds.values()), f"{ended} of {len(dealt)} parts done" if ended else "")
    finally:
        executor.stop()
    return failed


def split_into_groups(runs: Sequence[ComparedRun], groups: int) -> list[list[ComparedRun]]:
    """Split runs into at most this many groups of nearly equal size; a method's runs are spread over the groups."""
    of_seeds: dict[int, list[ComparedRun]] = {}
    for run in runs:
        of_seeds.setdefault(run.seed, []).append(run)
    # Each seed begins with another method. Otherwise a slow method could have all its runs in one group.
    dealt = [
        of_seed[(at + turn) % len(of_seed)]
        for turn, of_seed in enumerate(of_seeds.values())
        for at in range(len(of_seed))
    ]
    return [dealt[first::groups] for first in range(min(groups, len(dealt)))]


def _make_task(runs: Sequence[ComparedRun], name: str, data_dir: Path | None) -> str:
    """Return the text of a task that executes these runs with one thread each, because tasks run in parallel."""
    single = [(run.name, run.folder, replace(run.spec, jobs=1, threads=1)) for run in runs]
    return make_task(name, RUN_AND_SCORE, single, data_dir)
