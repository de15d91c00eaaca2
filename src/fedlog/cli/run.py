"""The options of `fedlog run`. The module `run_work` does the work, and is imported only when it starts."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedlog.cli.command import add_allow_code_flag, import_on_call
from fedlog.settings.fields import find_setting_types
from fedlog.settings.flags import add_flags
from fedlog.settings.spec import RunSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog run`."""
    parser.set_defaults(handler=import_on_call("run_work:train_and_report"))
    parser.add_argument(
        "config", nargs="?", type=Path, metavar="FILE.toml", help="a file with settings; flags override them"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the folder of the run (default: runs/<time>-<data>-<method>)"
    )
    parser.add_argument("--seeds", metavar="N", help="run with several seeds: how many, or which ones, such as 0,1,2")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="continue the interrupted run in this folder")
    parser.add_argument(
        "--dry-run", action="store_true", help="print a forecast of bits, memory and time, and train nothing"
    )
    add_allow_code_flag(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    parser.add_argument("--profile", action="store_true", help="print how much time each part of a round took")
    parser.add_argument("--quiet", action="store_true", help="show no progress, only warnings")
    parser.add_argument(
        "--personal",
        action="store_true",
        help="each client also solves heads of its own, and takes the best on its validation records",
    )
    add_flags(parser, find_setting_types(RunSpec))
