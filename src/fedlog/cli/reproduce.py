"""`fedlog reproduce`: the tables and figures of the paper, cell by cell."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from fedlog.cli.cell_progress import CellProgress
from fedlog.errors import InputError
from fedlog.experiments.catalog import experiment
from fedlog.experiments.cell_process import Outcome
from fedlog.experiments.cells import Cell, Choice, cells
from fedlog.experiments.executors import executor
from fedlog.experiments.inventory import Entry, inventory
from fedlog.experiments.runner import run_cells

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Nothing; `reproduce` is then among the commands."""
    reproduce = subparsers.add_parser("reproduce", help="run the tables and figures of the paper")
    reproduce.set_defaults(handler=reproduce_command)
    reproduce.add_argument("name", nargs="?", metavar="NAME", help="an experiment; see --list")
    reproduce.add_argument("--list", action="store_true", help="what there is, what it needs, what has been run")
    reproduce.add_argument("--methods", metavar="A,B", help="only these rows")
    reproduce.add_argument("--seeds", metavar="0,1", help="only these seeds")
    reproduce.add_argument("--rounds", type=int, metavar="N", help="another length; kept apart, in NAME-N-rounds")
    reproduce.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    reproduce.add_argument("--jobs", type=int, metavar="N", help="processes, one core each (default: all cores)")
    reproduce.add_argument("--executor", default="processes", help="processes, or dask://host:port")
    reproduce.add_argument("--data-dir", type=Path, metavar="DIR", help="default: $FEDLOG_DATA, or the cache")
    reproduce.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    reproduce.add_argument("--quiet", action="store_true", help="no progress")


def reproduce_command(args: argparse.Namespace) -> int:
    """Exit code 0 when every cell is done, 1 when one of them failed."""
    if args.list:
        return _list(args)
    if args.name is None:
        raise InputError("name an experiment", hint="fedlog reproduce --list")
    wanted = cells(experiment(args.name), args.out, _choice(args))
    console = Console(stderr=True, highlight=False, quiet=args.quiet)
    where = executor(args.executor, args.jobs or os.cpu_count() or 1, args.out)
    with CellProgress(console) as progress:
        outcomes = run_cells(wanted, where, progress, args.data_dir)
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    if args.json:
        print(json.dumps(_told(wanted, outcomes)))
    loud = Console(stderr=True, highlight=False, soft_wrap=True)  # --quiet silences progress, not failures
    for outcome in failed:
        loud.print(f"failed: {outcome.cell}: {outcome.error}", style="red")
    if not args.json:
        print(f"{args.name}: {len(wanted) - len(failed)} of {len(wanted)} cells done in {args.out}")
    return 1 if failed else 0


def _choice(args: argparse.Namespace) -> Choice:
    rows = tuple(name.strip() for name in (args.methods or "").split(",") if name.strip())
    try:
        seeds = tuple(int(seed) for seed in (args.seeds or "").split(",") if seed.strip())
    except ValueError:
        raise InputError(f"seeds are whole numbers with commas: {args.seeds}", hint="--seeds 0,1,2") from None
    return Choice(rows, seeds, args.rounds)


def _told(wanted: list[Cell], outcomes: list[Outcome]) -> dict[str, object]:
    ran = {outcome.cell: outcome for outcome in outcomes}
    return {
        "cells": [
            {
                "row": cell.row.name,
                "seed": cell.seed,
                "folder": str(cell.folder),
                "state": "skipped" if cell.name not in ran else "failed" if ran[cell.name].error else "done",
                "accuracy": ran[cell.name].accuracy if cell.name in ran else None,
                "error": ran[cell.name].error if cell.name in ran else None,
            }
            for cell in wanted
        ]
    }


def _list(args: argparse.Namespace) -> int:
    entries = inventory(args.out, args.data_dir, args.jobs or os.cpu_count() or 1)
    if args.json:
        print(json.dumps({"experiments": [entry.plain() for entry in entries]}))
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("experiment", "data", "rows", "seeds", "done", "hours left"):
        table.add_column(column, justify="left" if column in ("experiment", "data") else "right")
    for entry in entries:
        table.add_row(*_line(entry))
    Console(highlight=False).print(table)
    for entry in entries:
        if entry.missing:
            print(f"{entry.experiment.name}: {entry.missing}")
    return 0


def _line(entry: Entry) -> tuple[str, ...]:
    experiment = entry.experiment
    hours = "data needed" if entry.hours_left is None else f"{entry.hours_left:.2f}"
    return (
        experiment.name,
        ", ".join(experiment.data),
        str(len(experiment.rows)),
        str(len(experiment.seeds)),
        f"{entry.done} of {entry.cells}",
        hours,
    )
