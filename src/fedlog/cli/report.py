"""`fedlog report`: pages from records."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `fedlog report` takes."""
    parser.set_defaults(handler=report_command)
    parser.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="a run folder, a folder of such folders (runs/), or one of `fedlog reproduce`",
    )
    parser.add_argument("--tables", type=Path, metavar="DIR", help="write every table there too, as .csv and .tex")


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
