"""The options of `fedlog compare`. The module `compare_work` does the work, and is imported only when it starts."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedlog.cli.command import import_on_call
from fedlog.settings.fields import find_setting_types
from fedlog.settings.flags import add_flags
from fedlog.settings.spec import RunSpec

# Settings of a run that are not flags here: a comparison has several values of them, or sets them itself.
NOT_COMMON = ("method", "recipe", "seed", "split_seed", "judge", "jobs", "threads")
JSON_HELP = "print one JSON object on stdout and nothing else there"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fedlog compare`."""
    parser.set_defaults(handler=import_on_call("compare_work:compare_and_report"))
    parser.add_argument(
        "--methods", metavar="A,B", help="default: fedlog,fedlog-c,fedproto,fedavg; local and pooled are always added"
    )
    text = "how many seeds, or which: 0,1,2; each has other validation rows (default: 5; 20 below 2,000 rows)"
    parser.add_argument("--seeds", metavar="N", help=text)
    parser.add_argument("--codecs", metavar="A,B", help="several codecs, each tried with every method that sends")
    parser.add_argument(
        "--bodies", nargs="+", default=[], metavar="NAME", help="several bodies, each tried with every method"
    )
    parser.add_argument(
        "--recipe",
        dest="recipes",
        action="append",
        default=[],
        metavar="paper|tuned|NAME:KEY=VALUE,...",
        help="settings that are not given: the paper's, or tuned ones (docs/running.md); or settings tried with every "
        "method under this name, e.g. long:rounds=30,decay=cosine; repeatable",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer methods, rounds and steps; it says what it left out"
    )
    parser.add_argument(
        "--worth", type=float, default=1.0, metavar="POINTS", help="the smallest gain that pays (default: 1 point)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/<time>-compare-...)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs side by side, one core each (default: all cores)")
    parser.add_argument("--executor", default="processes", help="processes, or dask://host:port (default: processes)")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row a method and site")
    parser.add_argument("--latex", type=Path, metavar="FILE", help="write the table of methods and that of sites")
    parser.add_argument(
        "--write-plan", type=Path, metavar="DIR", help="draft the schema there, and print the commands of a deployment"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_flags(parser, [name for name in find_setting_types(RunSpec) if name not in NOT_COMMON])
