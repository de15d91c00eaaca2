"""`fedlog run`: train one method on one data set, with a live line, a summary and a report."""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fedlog.cli.progress import Progress
from fedlog.errors import InputError
from fedlog.experiments.dry_run import forecast
from fedlog.experiments.records import Summary
from fedlog.experiments.run import execute, stored_spec
from fedlog.experiments.spec import RunSpec, from_toml, resolve
from fedlog.report.page import write_run_page

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Nothing; `run` is then among the commands."""
    run = subparsers.add_parser("run", help="train one method on one data set")
    run.set_defaults(handler=run_command)
    run.add_argument("config", nargs="?", type=Path, metavar="FILE.toml", help="settings; flags override them")
    run.add_argument("--method", help="fedlog, fedlog-c, local, pooled, fedavg, ... or package.module:name")
    run.add_argument(
        "--data", help="digits (default), circle, mnist, cifar10, cifar100, har, leaf, or package.module:name"
    )
    run.add_argument("--clients", type=int, metavar="N")
    run.add_argument("--classes-per-client", type=int, metavar="K")
    run.add_argument("--partition", choices=["shards", "dirichlet", "user", "iid", "ordered"])
    run.add_argument("--dirichlet-alpha", type=float, metavar="A")
    run.add_argument("--train-records", type=int, metavar="N", help="the first N training records only")
    run.add_argument("--validation-fraction", type=float, metavar="F", help="of each client's training records")
    run.add_argument("--judge", choices=["test", "validation"], help="held-out records the accuracy is taken on")
    run.add_argument(
        "--body", action="append", metavar="NAME", help="cnn, mlp:64,64, ...; several are dealt out evenly"
    )
    run.add_argument("--initialisation", choices=["shared", "separate"], help="of the bodies")
    run.add_argument("--rounds", type=int, metavar="N")
    run.add_argument("--batch-size", type=int, metavar="N")
    run.add_argument("--participation", type=float, metavar="F", help="share of the clients in each round")
    run.add_argument("--seed", type=int, metavar="N")
    run.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the method")
    run.add_argument("--stop-at-accuracy", type=float, metavar="F", help="for cost-to-threshold measurements only")
    run.add_argument("--codec", help="f32")
    run.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/<time>-<data>-<method>)")
    run.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted run")
    run.add_argument("--data-dir", metavar="DIR", help="folder of the data sets (default: $FEDLOG_DATA, or the cache)")
    run.add_argument("--device", help="cpu (default), cuda, ...")
    run.add_argument("--backend", choices=["auto", "block", "vmap", "loop"])
    run.add_argument("--jobs", type=int, metavar="N", help="worker processes, one thread each (default: all cores)")
    run.add_argument("--threads", type=int, metavar="N", help="PyTorch threads in each process (default: 1)")
    run.add_argument("--dry-run", action="store_true", help="say what would be sent, the memory and the time, and stop")
    run.add_argument("--json", action="store_true", help="print one JSON object on stdout and nothing else there")
    run.add_argument("--quiet", action="store_true", help="no progress")


def run_command(args: argparse.Namespace) -> int:
    """Exit code 0 after a finished run."""
    spec, folder = _what_and_where(args)
    console = Console(stderr=True, highlight=False, quiet=args.quiet)
    if args.dry_run:
        return _dry_run(args, spec)
    with Progress(console) as progress:
        try:
            summary = execute(spec, folder, progress)
        except KeyboardInterrupt:
            progress.close()
            console.print(f"interrupted; go on with: fedlog run --resume {folder}")
            raise
    report = write_run_page(folder)
    if args.json:
        print(json.dumps({**asdict(summary), "report": str(report)}))
    else:
        _show(console, summary, report)
    return 0


def _what_and_where(args: argparse.Namespace) -> tuple[RunSpec, Path]:
    given = _given(args)
    if args.resume is not None:
        started_with = {name for name in given if name not in ("jobs", "threads", "data_dir", "device", "backend")}
        if started_with or args.config or args.out:
            raise InputError(
                f"--resume takes the settings from the folder: {', '.join(sorted(started_with)) or 'more'} given",
                hint=f"fedlog run --resume {args.resume}",
            )
        return replace(stored_spec(args.resume), **given), args.resume
    on_cpu = given.get("device", "cpu") == "cpu"
    start = RunSpec(jobs=_cores() if on_cpu else 1)
    spec = from_toml(args.config, start) if args.config else start
    spec = replace(spec, **{**given, "options": {**spec.options, **given.get("options", {})}})
    when = time.strftime("%Y%m%d-%H%M%S")
    method = spec.method.replace(":", "-")
    data = spec.data.replace(":", "-")
    return spec, args.out or Path("runs") / f"{when}-{data}-{method}"


def _cores() -> int:
    # Those this process may use: a container or a batch system often grants fewer than the machine has.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were named on the command line."""
    known = {f.name for f in fields(RunSpec)}
    given = {name: value for name, value in vars(args).items() if name in known and value is not None}
    if "body" in given:
        given["body"] = tuple(given["body"])
    options = {}
    for pair in args.set:
        name, separator, value = pair.partition("=")
        if not separator:
            raise InputError(f"an option is NAME=VALUE: {pair}", hint="for example --set alpha=0.01")
        options[name.replace("-", "_")] = value
    return {**given, "options": options} if options else given


def _dry_run(args: argparse.Namespace, spec: RunSpec) -> int:
    found = forecast(resolve(spec))
    if args.json:
        print(json.dumps(asdict(found)))
        return 0
    for line in found.lines():
        print(line)
    return 0


def _show(console: Console, summary: Summary, report: Path) -> None:
    table = Table(title=f"{summary.method} on {summary.data}, {summary.rounds} rounds, seed {summary.seed}")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("accuracy, mean over clients (final round)", f"{100 * summary.accuracy_mean_over_clients:.2f} %")
    if summary.accuracy_after_closing is not None:
        table.add_row("the same after the closing local phase", f"{100 * summary.accuracy_after_closing:.2f} %")
    table.add_row("lowest client", f"{100 * min(summary.accuracy_per_client):.2f} %")
    table.add_row("bits up, all clients", f"{summary.bits_up / 1e6:.3f} Mb")
    table.add_row("bits down, all clients", f"{summary.bits_down / 1e6:.3f} Mb")
    table.add_row("seconds in rounds", f"{summary.seconds:.1f}")
    console.print(table)
    console.print(f"run folder: {summary.run_dir}")
    print(f"report: {report}")
