"""The page of a folder of runs: comparisons, curves, and a table of all runs with links to their pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.compare.advice import advise
from fedlog.experiments.compare.finished_runs import label_runs, read_findings_below
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import CONFIG, RECORDS, read_spec, read_summary_if_finished
from fedlog.files.durable import write_file
from fedlog.report.compare.comparison_page import make_comparison_section
from fedlog.report.pages import page_top
from fedlog.report.pages.run_page import write_run_page
from fedlog.report.parts.curves import Curve, average_curves, make_curve, make_curve_plots
from fedlog.report.parts.plots import Plot
from fedlog.report.parts.render import PAGE, format_percent, render_page
from fedlog.report.parts.style import choose_styles, find_style
from fedlog.wire.bits_text import describe_bits

MOST_CURVES = 35  # the number of different styles


@dataclass(frozen=True)
class RunRow:
    """The texts of one row in a table of runs."""

    name: str
    link: str
    method: str
    data: str
    seed: int
    rounds: str
    accuracy: str
    bits: str


def find_run_folders(folder: Path) -> list[Path]:
    """Find the folders of runs below this folder, at any depth, sorted by name."""
    return sorted(path.parent for path in folder.rglob(CONFIG)) if folder.is_dir() else []


def write_runs_page(folder: Path) -> Path:
    """Write a page for every finished run in the folder and a page that lists all runs; return the path of the list."""
    links = {}
    for run in find_run_folders(folder):
        if read_summary_if_finished(run) is not None:
            links[run] = write_run_page(run).relative_to(folder).as_posix()
    path = folder / PAGE
    write_file(path, render_runs(folder, links))
    return path


def render_runs(folder: Path, links: dict[Path, str], records_version: str | None = None) -> str:
    """Return the HTML of the page that lists all runs in the folder; `links` has the address of each run's own page."""
    compared = [findings for findings in read_findings_below(folder) if len(findings.labels) > 1]
    return render_page(
        "runs.html.j2",
        title=f"Runs in {folder.resolve().name}",
        sections=[make_comparison_section(each, advise(each), (), at) for at, each in enumerate(compared, 1)],
        rows=[_make_row(folder, run, links.get(run, "")) for run in find_run_folders(folder)],
        plots=_make_plots_by_data(folder),
        who="client",
        empty="No run yet. One that is started in this folder appears here.",
        records_version=records_version,
    )


def _make_row(folder: Path, run: Path, link: str) -> RunRow:
    """Make the table row of a run below the folder, finished or not; `link` is the address of its page, or empty."""
    spec, summary = read_spec(run), read_summary_if_finished(run)
    name, method = run.relative_to(folder).as_posix(), find_style(spec.method).label
    lines = records.read_rounds(run / RECORDS)
    accuracy = format_percent(lines[-1].accuracy_mean_over_clients, 2) if lines else ""
    if summary is not None:
        rounds, bits = str(summary.rounds), summary.bits_up + summary.bits_down
        if summary.regression is None:
            accuracy = format_percent(summary.accuracy_mean_over_clients, 2)
        else:
            error = summary.regression["rmse_mean_over_clients"]
            accuracy = page_top.describe_result(summary.accuracy_mean_over_clients, error)
    else:
        rounds = f"{len(lines)} of {spec.rounds}, not finished"
        bits = sum(line.bits_up + line.bits_down for line in lines)
    return RunRow(name, link, method, spec.data, spec.seed, rounds, accuracy, describe_bits(bits) if bits else "none")


def _make_plots_by_data(folder: Path) -> list[tuple[str, list[Plot]]]:
    """Return (data set, plots) for each data set: accuracy curves of its newest runs, at most MOST_CURVES curves."""
    by_data: dict[str, dict[Path, Sequence[RoundRecord]]] = {}
    for run in find_run_folders(folder):
        lines = records.read_rounds(run / RECORDS)
        if lines:
            by_data.setdefault(read_spec(run).data, {})[run] = lines
    found = []
    for number, (data, runs) in enumerate(by_data.items(), 1):
        predicts_number = all(lines[-1].rmse_per_client for lines in runs.values())
        measure = "share inside 90 % intervals" if predicts_number else "test accuracy"
        found.append((data, make_curve_plots(_make_curves(runs), measure=measure, name=f"data-{number}")))
    return found


def _make_curves(runs: Mapping[Path, Sequence[RoundRecord]]) -> list[Curve]:
    """Make a curve for each variant of a method: the mean of its runs, which differ by their seeds.

    The mean leaves out runs with fewer rounds than another run of the same variant, such as unfinished runs.
    """
    specs = {run: read_spec(run) for run in runs}
    variants: dict[str, list[Path]] = {}
    for run, label in label_runs(specs).items():
        variants.setdefault(label, []).append(run)
    newest = sorted(variants, key=lambda label: max((run / RECORDS).stat().st_mtime for run in variants[label]))
    shown = [label for label in variants if label in newest[-MOST_CURVES:]]
    seeds = {label: len({specs[run].seed for run in variants[label]}) for label in shown}
    labels = {label: f"{label}, mean of {seeds[label]} seeds" if seeds[label] > 1 else label for label in shown}
    styles = choose_styles({labels[label]: specs[variants[label][0]].method for label in shown})
    curves = []
    for label, name in labels.items():
        most = max(len(runs[run]) for run in variants[label])
        whole = [
            make_curve(name, styles[name], runs[run], _count_opening_bits(run))
            for run in variants[label]
            if len(runs[run]) == most
        ]
        curves.append(average_curves(name, styles[name], whole))
    return curves


def _count_opening_bits(run: Path) -> int:
    """Count the bits that were sent before round 1; 0 if the run is not finished."""
    summary = read_summary_if_finished(run)
    return 0 if summary is None else sum(summary.bits_opening.values())
