"""`fedlog report`: pages from records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Nothing; `report` is then among the commands."""
    report = subparsers.add_parser("report", help="write the page of a run folder")
    report.set_defaults(handler=report_command)
    report.add_argument("folder", type=Path, metavar="DIR", help="a folder that `fedlog run` wrote")


def report_command(args: argparse.Namespace) -> int:
    """Exit code 0, after the page has been written and named."""
    from fedlog.report.page import write_run_page  # PyTorch and matplotlib: not for `--help`

    print(f"report: {write_run_page(args.folder)}")
    return 0
