"""`fedlog report`: write pages and tables from records."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedlog.report.parts.tables import TextTable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog report`."""
    parser.set_defaults(handler=write_report)
    text = (
        "the folder of a run, a folder of such folders (runs/), the --out of `fedlog reproduce`, or a server's folder"
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help=text)
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="also write every table into this folder, as .csv and .tex"
    )


def write_report(args: argparse.Namespace) -> None:
    """Write the page of the folder (a run, many runs, results of `fedlog reproduce`, a server), and print its path."""
    if is_deployed(args.folder):
        _write_deployed_reports(args)
        return
    # Imported here: PyTorch and matplotlib are slow to import, and `--help` needs neither.
    from fedlog.experiments.run.execute import CONFIG
    from fedlog.experiments.tables.catalog import list_experiments_with_versions
    from fedlog.report.exported_tables import make_tables_of_folder
    from fedlog.report.pages.run_page import write_run_page
    from fedlog.report.pages.runs_page import find_run_folders, write_runs_page
    from fedlog.report.paper.reproduction import write_results_page

    if any((args.folder / experiment.name).is_dir() for experiment in list_experiments_with_versions(args.folder)):
        page = write_results_page(args.folder)
    elif (args.folder / CONFIG).exists() or not find_run_folders(args.folder):
        page = write_run_page(args.folder)
    else:
        page = write_runs_page(args.folder)
    print(f"report: {page}")
    if args.tables is not None:
        _write_tables(make_tables_of_folder(args.folder), args.tables)


def is_deployed(folder: Path) -> bool:
    """Return whether the folder belongs to a deployed run, or to a server of deployed runs."""
    return any((folder / name).exists() for name in ("plan.json", "federation.toml"))


def _write_deployed_reports(args: argparse.Namespace) -> None:
    # Needs the extra `federate`, as the server does.
    from fedlog.cli.deployed_run import find_deployed_runs, read_deployed_run, write_page_of_deployed_run
    from fedlog.errors import InputError
    from fedlog.report.pages.deployed_page import make_deployed_tables

    runs = find_deployed_runs(args.folder)
    if not runs:
        raise InputError(
            f"expected a run at this server, found none: {args.folder}", hint=f"fedlog federate run {args.folder}"
        )
    for run in runs:
        print(f"report: {write_page_of_deployed_run(run)}")
        if args.tables is not None:
            out = args.tables if len(runs) == 1 else args.tables / run.name
            _write_tables(make_deployed_tables(read_deployed_run(run)), out)


def _write_tables(tables: Iterable[tuple[str, TextTable]], out: Path) -> None:
    from fedlog.report.exported_tables import write_tables

    for path in write_tables(tables, out):
        print(f"wrote: {path}")
