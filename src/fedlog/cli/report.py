"""`fedlog report`: pages from records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `report` command."""
    report = subparsers.add_parser("report", help="write the page of a run, of a folder of runs, or of all results")
    report.set_defaults(handler=report_command)
    report.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="a run folder, a folder of such folders (runs/), or one of `fedlog reproduce`",
    )
    report.add_argument("--tables", type=Path, metavar="DIR", help="write every table there too, as .csv and .tex")


def report_command(args: argparse.Namespace) -> int:
    """Write the page and print its name; return exit code 0."""
    # PyTorch and matplotlib: not for `--help`.
    from fedlog.experiments.run.execute import CONFIG
    from fedlog.experiments.tables.catalog import on_disk
    from fedlog.report.reproduction import write_results_page
    from fedlog.report.run_page import write_run_page
    from fedlog.report.runs_page import run_folders, write_runs_page

    if any((args.folder / experiment.name).is_dir() for experiment in on_disk(args.folder)):
        page = write_results_page(args.folder)
    elif (args.folder / CONFIG).exists() or not run_folders(args.folder):
        page = write_run_page(args.folder)
    else:
        page = write_runs_page(args.folder)
    print(f"report: {page}")
    if args.tables is not None:
        from fedlog.report.exported_tables import write_tables

        for path in write_tables(args.folder, args.tables):
            print(f"wrote: {path}")
    return 0
