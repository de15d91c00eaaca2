"""The last lines of `fedlog run`: the results compared with training alone, the main settings, and next steps."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedlog.experiments.run.baselines import find_baselines
from fedlog.experiments.run.execute import read_spec
from fedlog.experiments.run.records import Summary
from fedlog.models.model_folder import locate_client_model
from fedlog.settings.differences import find_differences
from fedlog.settings.spec import RunSpec
from fedlog.wire.bits_text import describe_bits

IN_TITLE = ("rounds", "seed")


def show_summary(console: Console, summary: Summary, folder: Path, report: Path) -> None:
    """Print the summary of a run to the console, and the path of its report to standard output."""
    spec = read_spec(folder)
    alone = find_baselines(folder, spec).get("local")
    table = Table(title=summary.title)
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right", overflow="fold")
    if summary.regression is not None:
        _add_regression_rows(table, summary.regression)
    else:
        _add_accuracy_rows(table, summary, alone)
    if summary.uploads_refused:
        table.add_row("uploads that could not be used", f"{summary.uploads_refused}")
    table.add_row("bits up, all clients", describe_bits(summary.bits_up))
    table.add_row("bits down, all clients", describe_bits(summary.bits_down))
    table.add_row("seconds in rounds", f"{summary.seconds:.1f}")
    console.print(table)
    print_whole_line(console, f"settings: {describe_main_settings(spec)}")
    print_whole_line(console, f"run folder: {summary.run_dir}")
    if summary.privacy is not None:
        print(f"privacy: {summary.privacy.get('statement', 'nothing was released')}")
        for caveat in summary.privacy["caveats"]:
            print_whole_line(console, f"warning: {caveat}")
    for line in _suggest_next_steps(spec, summary, folder, alone is not None):
        print_whole_line(console, f"next: {line}")
    print(f"report: {report}")


def print_whole_line(console: Console, line: str) -> None:
    """Print a line without wrapping it, so that it can be copied as a whole."""
    console.print(line, soft_wrap=True, markup=False)


def _add_accuracy_rows(table: Table, summary: Summary, alone: Summary | None) -> None:
    table.add_row("accuracy, mean over clients (final round)", f"{100 * summary.accuracy_mean_over_clients:.2f} %")
    if summary.accuracy_after_closing is not None:
        table.add_row("the same after the final local training", f"{100 * summary.accuracy_after_closing:.2f} %")
    if summary.accuracy_at_chosen_rounds is not None:
        chosen = f"{100 * summary.accuracy_at_chosen_rounds:.2f} %"
        table.add_row("the same, each client's round chosen on its validation records", chosen)
    if alone is not None:
        table.add_row("training alone, on the same records", f"{100 * alone.accuracy_mean_over_clients:.2f} %")
    lowest = min(share for share in summary.accuracy_per_client if share is not None)
    table.add_row("lowest client", f"{100 * lowest:.2f} %")


def _add_regression_rows(table: Table, scores: Mapping[str, Any]) -> None:
    table.add_row("root mean squared error, mean over clients", f"{scores['rmse_mean_over_clients']:.4g}")
    share, level = scores["inside_mean_over_clients"], scores["interval_level"]
    table.add_row(f"inside their {100 * level:.0f} % intervals", f"{100 * share:.1f} %")


def describe_main_settings(spec: RunSpec) -> str:
    """Describe in one line a run's main settings, and those that differ from the defaults of its data and method."""
    parts = {"body": ", ".join(spec.body), "batch size": f"{spec.batch_size}", "codec": spec.codec}
    parts |= {
        _format_setting_name(name): f"{spec.options[name]}"
        for name in ("epochs", "learning_rate")
        if name in spec.options
    }
    parts |= {
        _format_setting_name(each.name): each.text for each in find_differences(spec) if each.name not in IN_TITLE
    }
    return "; ".join(f"{name} {value}" for name, value in parts.items())


def _format_setting_name(name: str) -> str:
    return name.replace("_", " ")


def _suggest_next_steps(spec: RunSpec, summary: Summary, folder: Path, has_baseline: bool) -> list[str]:
    """List commands that a user may want next: `fedlog compare` and `fedlog predict`, where they make sense.

    `has_baseline` says whether training alone was run too: then `fedlog compare` is not suggested.
    """
    lines = []
    if not has_baseline and spec.method != "local" and summary.regression is None:
        data = [f"--data {shlex.quote(spec.data)}"]
        data += [f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name in ("label", "schema", "site_column")
                 if (value := getattr(spec, name)) is not None]  # fmt: skip
        lines.append(f"fedlog compare {' '.join(data)} --quick    # is it better than training alone?")
    if spec.data.startswith("sites:") and summary.clients:
        model = shlex.quote(str(locate_client_model(folder / "models", summary.clients[0])))
        sites = Path(spec.data.removeprefix("sites:"))
        images = sites.is_dir() and any(path.is_dir() for path in sites.iterdir())
        lines.append(f"fedlog predict {model} --data {'new-images/' if images else 'new.csv'}")
    return lines
