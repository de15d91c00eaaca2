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
        "--methods",
        metavar="A,B",
        help="the methods to run (default: fedlog,fedlog-c,fedproto,fedavg); local and pooled are always added",
    )
    text = (
        "how many seeds, or which ones: 0,1,2; each holds out other validation rows (default: 5; 20 below 2,000 rows)"
    )
    parser.add_argument("--seeds", metavar="N", help=text)
    parser.add_argument(
        "--codecs", metavar="A,B", help="several codecs; every method that sends messages is run with each"
    )
    parser.add_argument(
        "--bodies", nargs="+", default=[], metavar="NAME", help="several bodies; every method is run with each"
    )
    parser.add_argument(
        "--recipe",
        dest="recipes",
        action="append",
        default=[],
        metavar="paper|tuned|NAME:KEY=VALUE,...",
        help="paper or tuned: where settings that are not given come from (docs/running.md). NAME:KEY=VALUE,...: run "
        "every method also with these settings, under this name, e.g. long:rounds=30,decay=cosine; can be repeated",
    )
    parser.add_argument(
        "--quick", action="store_true", help="run fewer methods, rounds and steps; a note says what was left out"
    )
    parser.add_argument(
        "--worth",
        type=float,
        default=1.0,
        metavar="POINTS",
        help="the smallest gain in accuracy that is worth a federation, in percentage points (default: 1)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/<time>-compare-...)")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="how many runs to compute in parallel, one core each (default: all cores)"
    )
    parser.add_argument(
        "--executor",
        default="processes",
        help="where to compute: processes here, or dask://host:port (default: processes)",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write a table with a row for each method and site")
    parser.add_argument("--latex", type=Path, metavar="FILE", help="write the table of methods and the table of sites")
    parser.add_argument(
        "--write-plan",
        type=Path,
        metavar="DIR",
        help="draft the schema in DIR, and print the commands for a deployment",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_flags(parser, [name for name in find_setting_types(RunSpec) if name not in NOT_COMMON])
