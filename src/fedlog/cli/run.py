"""The options of `fedlog run`. The module `run_work` does the work, and is imported only when it starts."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedlog.cli.command import add_allow_code, import_on_call
from fedlog.settings.fields import find_setting_types
from fedlog.settings.flags import add_flags
from fedlog.settings.spec import RunSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog run`."""
    parser.set_defaults(handler=import_on_call("run_work:train_and_report"))
    parser.add_argument("config", nargs="?", type=Path, metavar="FILE.toml", help="settings; flags override them")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/<time>-<data>-<method>)")
    parser.add_argument(
        "--seeds", metavar="N", help="how many seeds, or which (0,1,2): a comparison of this one method"
    )
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted run")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be sent, the memory and the time, and stop"
    )
    add_allow_code(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    parser.add_argument("--profile", action="store_true", help="say where a round's time went, part by part")
    parser.add_argument("--quiet", action="store_true", help="show no progress, only warnings")
    parser.add_argument(
        "--personal", action="store_true", help="each client solves a head of its own, chosen on validation records"
    )
    add_flags(parser, find_setting_types(RunSpec))
