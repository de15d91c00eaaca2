"""The work of `fedlog run`: train one method on one data set, show progress and a summary, and write a report."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from dataclasses import asdict, fields, replace
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedlog.api.progress import Progress
from fedlog.cli.command import count_cores
from fedlog.cli.run_summary import show_summary
from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.errors import InputError
from fedlog.experiments.run import records
from fedlog.experiments.run.callbacks import Callback, RunStart
from fedlog.experiments.run.dry_run import forecast_cost
from fedlog.experiments.run.execute import CONFIG, RECORDS, execute, read_spec
from fedlog.experiments.run.records import compute_mean_seconds_by_part
from fedlog.files.toml import read_toml
from fedlog.settings.fields import InDigest, find_setting_info
from fedlog.settings.flags import read_given_settings
from fedlog.settings.presets import apply_recipe
from fedlog.settings.spec import RunSpec, read_spec_file


def train_and_report(args: argparse.Namespace) -> int:
    """Train, write the report and print the summary; return exit code 0, or 1 if a run of `--seeds` failed."""
    if args.profile and (args.seeds is not None or args.dry_run):
        raise InputError(
            f"expected --profile or {'--dry-run' if args.dry_run else '--seeds'}, found both: --profile measures the "
            "rounds of a single whole run",
            hint="leave --profile out",
        )
    spec, folder = _choose_spec_and_folder(args)
    console = Console(stderr=True, highlight=False, quiet=args.quiet)
    if args.dry_run:
        with Progress(console) as progress:
            _print_cost_forecast(args, spec, progress)
            return 0
    if args.seeds is not None:
        from fedlog.cli.compare_work import run_seeds_and_report

        return run_seeds_and_report(args, spec, folder)
    # --quiet hides progress, not warnings.
    with Progress(console, Console(stderr=True, highlight=False) if args.quiet else console) as progress:
        try:
            summary = execute(spec, folder, [progress, TimingCallback()] if args.profile else [progress])
            from fedlog.report.pages.run_page import write_run_page

            report = write_run_page(folder)
        except KeyboardInterrupt:
            if not (folder / CONFIG).exists():
                raise
            raise KeyboardInterrupt(f"to continue this run: fedlog run --resume {shlex.quote(str(folder))}") from None
    if args.json:
        times = {"seconds_by_part": _compute_profile(folder)} if args.profile else {}
        print(json.dumps({**asdict(summary), "report": str(report), **times}))
    else:
        show_summary(console, summary, folder, report)
        if args.profile:
            _print_profile(console, records.read_rounds(folder / RECORDS))
    return 0


class TimingCallback(Callback):
    """A callback that lets a run measure the time of each part of a round, for `--profile`."""

    def run_began(self, start: RunStart) -> None:
        """Let the run measure the time of each part of a round."""
        start.simulation.profiles = True


def _compute_profile(folder: Path) -> dict[str, float]:
    """Return the mean seconds of each part of a round, over the rounds of this folder's run that were measured."""
    found = compute_mean_seconds_by_part(records.read_rounds(folder / RECORDS))
    return {part: seconds for part, seconds, _ in found}


def _print_profile(console: Console, rounds: list[RoundRecord]) -> None:
    timed = [record for record in rounds if record.seconds_by_part]
    table = Table(title=f"a round's time, mean of {len(timed)}")
    table.add_column("part")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for part, seconds, share in compute_mean_seconds_by_part(timed):
        table.add_row(part, f"{seconds:.4f}", f"{100 * share:.1f} %")
    console.print(table)


def _choose_spec_and_folder(args: argparse.Namespace) -> tuple[RunSpec, Path]:
    given = read_given_settings(args)
    if args.resume is not None:
        # Where a run is computed, and where its data are, may change; the content of the data is checked.
        may_change = {entry.name for entry in fields(RunSpec) if find_setting_info(entry).in_digest is InDigest.NEVER}
        refused = sorted(name for name in given if name not in may_change)
        refused += [str(args.config)] if args.config else []
        refused += ["--out"] if args.out else []
        if refused:
            raise InputError(
                f"--resume takes the settings from the run's folder, but these were given too: {', '.join(refused)}",
                hint=f"fedlog run --resume {shlex.quote(str(args.resume))}",
            )
        spec = replace(read_spec(args.resume), **given)
        # The stored number of processes was chosen for the CPU; on another device one process is enough.
        return (replace(spec, jobs=1) if spec.device != "cpu" and "jobs" not in given else spec), args.resume
    device = given.get("device") or (read_spec_file(args.config).device if args.config else "cpu")
    start = RunSpec(jobs=count_cores() if device == "cpu" else 1)
    spec = read_spec_file(args.config, start) if args.config else start
    spec = replace(spec, **{**given, "options": {**spec.options, **given.get("options", {})}})
    in_file = read_toml(args.config, "the configuration") if args.config else {}
    return apply_recipe(spec, given={*in_file, *given}), args.out or _choose_new_folder(spec)


def _choose_new_folder(spec: RunSpec) -> Path:
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{spec.data}-{spec.method}".replace(":", "-")
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(path for path in (Path("runs") / each for each in names) if not path.exists())


def _print_cost_forecast(args: argparse.Namespace, spec: RunSpec, progress: Progress) -> None:
    """Print the time, bits and memory that the whole run would need, for `--dry-run`."""
    found = forecast_cost(spec, progress.features_computed)
    if args.resume is not None:
        done = records.count_rounds(args.resume / RECORDS)
        print(f"this is the forecast of the whole run, of which {done} rounds are done", file=sys.stderr)
    print(json.dumps(asdict(found)) if args.json else "\n".join(found.format_lines()))
