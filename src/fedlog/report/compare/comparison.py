"""Show a comparison as tables, as JSON values, as CSV, and as a figure of accuracy against bits."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedlog.experiments.compare.advice import Advice
from fedlog.experiments.compare.findings import OTHER_MEASURES, Findings, SiteResults, VariantResults
from fedlog.experiments.tables.significance import Estimate
from fedlog.report.parts.style import Style, choose_styles
from fedlog.report.parts.tables import TextTable
from fedlog.wire.bits_text import describe_bits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERVALS_NOTE = "Intervals are of 95 %, over rows, seeds and splits."
MOST_SITES = 12  # the figure shows at most this many sites; the table has all
PANELS_IN_A_ROW = 4  # panels side by side


def make_methods_table(findings: Findings) -> TextTable:
    """Make a table of accuracies, gains over training alone, bits and seconds: one row for each variant of a method.

    A variant is a method with one choice of codec, body and recipe.
    """
    beside = OTHER_MEASURES if findings.is_unbalanced else {}
    rows = [
        {
            "method": results.label,
            "accuracy, validation %": format_estimate(results.validation_accuracy),
            "test %": format_estimate(results.accuracy),
            "gain, validation": format_estimate(results.gain, "+", ""),
            "gain, test": format_estimate(results.gain_on_test, "+", ""),
            **{title: format_estimate(results.other_measures[name]) for name, title in beside.items()},
            "bits a site and round": describe_bits(results.bits_a_site_and_round) if results.bits else "none",
            "bits in all": describe_bits(results.bits) if results.bits else "none",
            "seconds": f"{results.seconds:.1f}",
        }
        for results in findings.results.values()
    ]
    seeds = max(results.repetitions for results in findings.results.values())
    return TextTable.from_rows(
        rows, f"{findings.data}: {len(findings.sites)} sites, {seeds} repetitions", (INTERVALS_NOTE,)
    )


def make_sites_table(findings: Findings) -> TextTable:
    """Make a table with a line for each site: its numbers of rows, its accuracy by training alone, and its gains.

    A gain is that of one variant of a method over training alone; each variant has a column.
    """
    others = [results for results in findings.results.values() if results.label != findings.local_label]
    alone = None if findings.local_label is None else findings.results[findings.local_label]
    training = next(iter(findings.runs.values())).scores.training
    rows = []
    for site in findings.sites:
        held = next(iter(findings.results.values())).sites[site]
        counts = f"{sum(training[site])} / {held.validation_rows} / {held.test_rows}"
        own = "" if alone is None else format_estimate(alone.sites[site].accuracy)
        rows.append((site, counts, own, *(format_estimate(results.sites[site].gain, "+", "") for results in others)))
    columns = ("site", "rows", "alone, test %", *(results.label for results in others))
    notes = (
        "Rows: for training in one run / judged for validation, in turn / for test. Gains over training alone are in "
        "points, on validation rows.",
    )
    return TextTable(columns, tuple(rows), "By site", notes)


def make_comparison_json(findings: Findings, advice: Advice, notes: Sequence[str]) -> dict[str, Any]:
    """Return the whole comparison as JSON values; accuracies and gains are shares from 0 to 1, not per cent."""
    return {
        "data": findings.data,
        "advice": {**asdict(advice), "kind": advice.kind.value},
        "methods": [asdict(results) for results in findings.results.values()],
        "warnings": list(findings.warnings),
        "notes": list(notes),
        "failed": dict(findings.failed),
    }


def make_spreadsheet_rows(findings: Findings) -> list[dict[str, Any]]:
    """Return the rows of a spreadsheet: for each variant of a method, a row for all sites together and one per site."""
    rows = []
    for results in findings.results.values():
        beside = {name: None if value is None else value.value for name, value in results.other_measures.items()}
        rows.append(
            {"method": results.label, "site": "all", **_flatten_estimates(results), **beside, "bits": results.bits}
        )
        rows += [
            {"method": results.label, "site": site, **_flatten_estimates(own)} for site, own in results.sites.items()
        ]
    return rows


def _flatten_estimates(results: VariantResults | SiteResults) -> dict[str, float | None]:
    """Return accuracy (on test rows), gain (on validation rows) and gain on test rows, each with its interval.

    Each has three entries: NAME, NAME_low and NAME_high.
    """
    named = {"accuracy": results.accuracy, "gain": results.gain, "gain_on_test": results.gain_on_test}
    return {
        f"{name}{suffix}": getattr(found, end, None)
        for name, found in named.items()
        for suffix, end in (("", "value"), ("_low", "low"), ("_high", "high"))
    }


def format_comparison_as_csv(findings: Findings) -> str:
    """Return the comparison as CSV, with the columns of `make_spreadsheet_rows`."""
    rows, written = make_spreadsheet_rows(findings), io.StringIO()
    writer = csv.DictWriter(written, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue()


def format_table_as_text(table: TextTable) -> str:
    """Return the table as text with aligned columns, for a terminal."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(table.columns))]
    aligned = [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([table.title, *aligned, *table.notes])


def format_estimate(estimate: Estimate | None, sign: str = "", missing: str = "no rows") -> str:
    """Format a share in per cent with half the width of its interval, as `91.3 ± 1.2`; return `missing` for None.

    If `sign` is "+", a positive share gets a plus sign.
    """
    if estimate is None:
        return missing
    half = "" if estimate.half_width is None else f" ± {100 * estimate.half_width:.1f}"
    return f"{100 * estimate.value:{sign}.1f}{half}"


def draw_comparison(findings: Findings) -> Figure:
    """Draw test accuracy against bits (log axis) with matplotlib.

    There is one panel for all sites together, and one for each of the first MOST_SITES sites.
    """
    from fedlog.report.parts.matplotlib_figure import ShownFigure

    sites = findings.sites[:MOST_SITES]
    columns = min(PANELS_IN_A_ROW, len(sites))
    rows = math.ceil(len(sites) / columns)
    figure = ShownFigure((9, 4 + 2.2 * rows))
    grid = figure.add_gridspec(rows + 2, columns)
    bits = {label: results.bits for label, results in findings.results.items()}
    styles = choose_styles({label: findings.find_method(label) for label in findings.labels})
    whole = figure.add_subplot(grid[:2, :])
    _draw_accuracies(whole, {label: results.accuracy for label, results in findings.results.items()}, bits, styles)
    whole.set(xlabel="bits up and down, all sites", ylabel="test accuracy, mean over sites (%)")
    whole.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    for at, site in enumerate(sites):
        axes = figure.add_subplot(grid[2 + at // columns, at % columns])
        _draw_accuracies(
            axes, {label: results.sites[site].accuracy for label, results in findings.results.items()}, bits, styles
        )
        axes.set_title(site, fontsize="small")
        axes.tick_params(labelsize="x-small")
    return figure


def _draw_accuracies(
    axes: Any, accuracies: Mapping[str, Estimate | None], bits: Mapping[str, float], styles: Mapping[str, Style]
) -> None:
    """Draw the accuracy of each variant against its bits, with its interval."""
    axes.set_xscale("symlog", linthresh=1e3)
    for label, accuracy in accuracies.items():
        if accuracy is None:
            continue
        half = accuracy.half_width
        axes.errorbar(
            [bits[label]],
            [100 * accuracy.value],
            yerr=None if half is None else [100 * half],
            capsize=3,
            label=styles[label].label,
            **styles[label].matplotlib_point,
        )
    axes.grid(alpha=0.3)
