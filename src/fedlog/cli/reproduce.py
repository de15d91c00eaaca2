"""`fedlog reproduce`: run the experiments behind the tables and figures of the paper.

An experiment has rows (methods or settings) and seeds. A cell is one run: one row with one seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedlog.api.progress import LiveBar
from fedlog.cli.command import count_cores, split_list
from fedlog.errors import InputError
from fedlog.experiments.tables.catalog import find_experiments
from fedlog.experiments.tables.cells import Cell, list_cells
from fedlog.experiments.tables.inventory import list_statuses
from fedlog.experiments.workers.cell_process import Outcome
from fedlog.experiments.workers.executors import make_executor
from fedlog.experiments.workers.runner import CellSnapshot, run_cells
from fedlog.files.duration_text import describe_duration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog reproduce`."""
    parser.set_defaults(handler=run_experiments)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the name of an experiment; --list shows all")
    parser.add_argument(
        "--list", action="store_true", help="list the experiments, the data that they need, and what has been run"
    )
    parser.add_argument("--methods", metavar="A,B", help="run only these rows of the table")
    parser.add_argument("--seeds", metavar="0,1", help="run only these seeds")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="run N rounds instead; the results go into NAME-N-rounds"
    )
    text = "run the first N rounds (default: 2) of finished runs again, and say which give other results now"
    parser.add_argument("--verify", type=int, nargs="?", const=2, metavar="N", help=text)
    parser.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="the folder of the results (default: results)"
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="how many runs to compute in parallel, one core each (default: all cores)"
    )
    parser.add_argument("--executor", default="processes", help="where to compute: processes here, or dask://host:port")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder of the data sets (default: $FEDLOG_DATA, or the cache)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run_experiments(args: argparse.Namespace) -> int:
    """Run, list or verify experiments; return exit code 0, or 1 if a run failed or gave other results than before."""
    for option, number in (("--rounds", args.rounds), ("--jobs", args.jobs), ("--verify", args.verify)):
        if number is not None and number < 1:
            raise InputError(
                f"{option} must be at least 1, found: {number}", hint=f"for example {option} 2, or leave {option} out"
            )
    if args.list:
        _print_experiments(args)
        return 0
    if args.name is None:
        raise InputError(
            "expected the name of an experiment, found none", hint="fedlog reproduce --list shows all names"
        )
    rows, seeds = _read_rows_and_seeds(args)
    wanted = {
        found.name: list_cells(found, args.out, rows, seeds, args.rounds) for found in find_experiments(args.name)
    }
    if args.verify is not None:
        return _verify_cells(args, [cell for found in wanted.values() for cell in found])
    try:
        ended = {name: _run_experiment(args, found) for name, found in wanted.items()}
    except KeyboardInterrupt:
        raise KeyboardInterrupt("to continue, run the same command again; finished runs are kept") from None
    if args.json:
        lines = [line for name, found in wanted.items() for line in _make_outcomes_json(name, found, ended[name])]
        print(json.dumps({"cells": lines}))
    return 1 if any(outcome.error is not None for outcomes in ended.values() for outcome in outcomes) else 0


def _verify_cells(args: argparse.Namespace, wanted: list[Cell]) -> int:
    """Run the first rounds of finished cells (runs) again; return exit code 0 if all give the same results, else 1."""
    from fedlog.experiments.workers.verify import verify_cells  # imported here: it imports the training code

    found = []
    for cell, repeated in verify_cells(wanted, args.verify, args.data_dir):
        at = repeated.first_difference
        outcome = f"repeats its first {repeated.rounds} rounds" if at is None else f"differs from round {at} on"
        print(f"{cell.name}: {outcome}", file=sys.stderr, flush=True)
        if at is not None and repeated.processor_of_record != repeated.processor:
            made_on = repeated.processor_of_record or "a processor that the record does not name"
            print(
                f"hint: it was made on {made_on}, this is {repeated.processor}; others may round differently",
                file=sys.stderr,
            )
        found.append({"cell": cell.name, "first_difference": at})
    differing = [each for each in found if each["first_difference"] is not None]
    if args.json:
        print(json.dumps({"verified": found}))
    else:
        print(f"{args.name}: {len(found) - len(differing)} of {len(found)} finished cells repeat")
    return 1 if differing else 0


def _run_experiment(args: argparse.Namespace, wanted: list[Cell]) -> list[Outcome]:
    """Run the cells (runs) of one experiment, show progress, and return the outcome of each cell."""
    # Without markup: a path may hold a word in brackets, which would be read as markup.
    console = Console(stderr=True, highlight=False, markup=False, quiet=args.quiet)
    where = make_executor(args.executor, args.jobs or count_cores(), args.out)
    with CellProgress(console) as progress:
        outcomes = run_cells(wanted, where, progress, args.data_dir)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    # --quiet hides progress, not failures.
    loud = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    for outcome in failed:
        loud.print(f"failed: {outcome.cell}: {outcome.error}", style="red")
    if not args.json:
        name = wanted[0].experiment.name
        print(f"{name}: {len(wanted) - len(failed)} of {len(wanted)} cells done in {args.out}")
    return outcomes


def _read_rows_and_seeds(args: argparse.Namespace) -> tuple[Sequence[str], Sequence[int]]:
    """Return the rows that `--methods` names and the seeds that `--seeds` names; an empty sequence means all."""
    rows = split_list("--methods", args.methods, "fedlog,fedavg")
    seeds = split_list("--seeds", args.seeds, "0,1,2")
    if not all(seed.isdecimal() for seed in seeds):
        raise InputError(f"--seeds must be whole numbers from 0 on, found: {args.seeds}", hint="--seeds 0,1,2")
    return rows, tuple(dict.fromkeys(int(seed) for seed in seeds))


def _make_outcomes_json(experiment: str, wanted: list[Cell], outcomes: list[Outcome]) -> list[dict[str, object]]:
    ran = {outcome.cell: outcome for outcome in outcomes}
    return [
        {
            "experiment": experiment,
            "row": cell.row.name,
            "seed": cell.seed,
            "folder": str(cell.folder),
            "state": "skipped" if cell.name not in ran else "failed" if ran[cell.name].error else "done",
            "accuracy": ran[cell.name].accuracy if cell.name in ran else None,
            "error": ran[cell.name].error if cell.name in ran else None,
        }
        for cell in wanted
    ]


def _print_experiments(args: argparse.Namespace) -> None:
    chosen = [] if args.name is None else [args.name]
    chosen += [f"--{name}" for name in ("methods", "seeds", "rounds", "verify") if getattr(args, name) is not None]
    if chosen:
        raise InputError(
            f"--list always shows all experiments, but these were given too: {', '.join(chosen)}",
            hint="fedlog reproduce --list",
        )
    entries = list_statuses(args.out, args.data_dir, args.jobs or count_cores())
    if args.json:
        print(json.dumps({"experiments": [entry.as_json() for entry in entries]}))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # narrow, since 80 columns must hold every name
    table.add_column("experiment", min_width=max(len(entry.experiment.name) for entry in entries))
    table.add_column("data", max_width=13)
    for column in ("rows", "seeds", "done", "to run"):
        table.add_column(column, justify="right")
    for entry in entries:
        experiment = entry.experiment
        counts = [f"{len(experiment.rows)}", f"{len(experiment.seeds)}", f"{entry.done} of {entry.cells}"]
        hours = "no data" if entry.hours_left is None else describe_duration(3600 * entry.hours_left)
        data = ", ".join(name.removesuffix("-selection") for name in experiment.data)
        table.add_row(experiment.name, data, *counts, hours)
    Console(highlight=False).print(table)
    waiting = [entry for entry in entries if entry.hours_left is None]
    for missing in dict.fromkeys(entry.missing for entry in waiting):
        print(f"{missing}, for: {', '.join(entry.experiment.name for entry in waiting if entry.missing == missing)}")
    for entry in entries:
        for folder in entry.others:
            print(f"{entry.experiment.name}: made with other settings, or not readable: {folder}")


class CellProgress(LiveBar):
    """Shows the progress of an experiment's runs (its cells) on standard error."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, seconds_between_lines=30.0)
        self._lines: dict[str, TaskID] = {}
        self._whole: TaskID | None = None
        self._cells = 0
        self._ended: set[str] = set()
        self._first_rounds: int | None = None
        self._started = time.monotonic()

    def on_start(self, to_do: Sequence[Cell], skipped: Sequence[Cell]) -> None:
        """Print how many runs there are to do, and show the progress bar."""
        self._cells = len(to_do)
        done_before = f", {len(skipped)} done before" if skipped else ""
        self._console.print(f"{len(to_do)} cells to run{done_before}")
        if to_do:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            rounds = sum(cell.record_count for cell in to_do)
            self._whole = self._show_bar(*columns, TimeElapsedColumn(), title="all cells", total=rounds)

    def on_progress(self, statuses: Sequence[CellSnapshot]) -> None:
        """Update the progress bars, or print a line every 30 seconds if no bar can be drawn."""
        running = [s for s in statuses if s.done and s.cell.name not in self._ended]
        done, rounds = sum(s.done for s in statuses), sum(s.cell.record_count for s in statuses)
        if self._first_rounds is None:
            self._first_rounds, self._started = done, time.monotonic()
        text = f"{len(self._ended)}/{self._cells} cells, {done}/{rounds} rounds{self._describe_time_left(done, rounds)}"
        if self._bar is not None and self._whole is not None:
            self._bar.update(self._whole, completed=done, text=text)
            for status in running:
                self._show_cell(self._bar, status)
        elif self._should_print_line():
            self._console.print(text)
            for status in running:
                at = f"round {status.done}/{status.cell.record_count}"
                self._console.print(f"  {status.cell.name}: {at}{_describe_cell_status(status)}")

    def on_end(self, outcome: Outcome) -> None:
        """Print how a run ended, and remove its progress bar."""
        self._ended.add(outcome.cell)
        if self._bar is not None and outcome.cell in self._lines:
            self._bar.remove_task(self._lines.pop(outcome.cell))
        accuracy = "" if outcome.accuracy is None else f", accuracy {100 * outcome.accuracy:.2f} %"
        how = f"done{accuracy}" if outcome.error is None else f"failed: {outcome.error}"
        self._console.print(f"{outcome.cell}: {how}")

    def _show_cell(self, bar: Progress, status: CellSnapshot) -> None:
        name = status.cell.name
        if name not in self._lines:
            self._lines[name] = bar.add_task(f"  {name}", total=status.cell.record_count, text="")
        bar.update(self._lines[name], completed=status.done, text=_describe_cell_status(status).lstrip(", "))

    def _describe_time_left(self, done: int, rounds: int) -> str:
        """Estimate the time left from the rounds done so far; the estimate is rough at first, because runs differ."""
        fresh = done - (self._first_rounds or 0)
        if fresh <= 0:
            return ""
        return f", about {describe_duration((rounds - done) * (time.monotonic() - self._started) / fresh)} left"


def _describe_cell_status(status: CellSnapshot) -> str:
    accuracy = "" if status.accuracy is None else f", {100 * status.accuracy:.2f} %"
    left = "" if status.seconds_left is None else f", about {describe_duration(status.seconds_left)} left"
    return accuracy + left
