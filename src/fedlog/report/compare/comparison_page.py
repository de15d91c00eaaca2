"""The page of a comparison: its advice, figures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedlog.experiments.compare.advice import Advice
from fedlog.experiments.compare.findings import Findings
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import RECORDS
from fedlog.experiments.tables.significance import Estimate
from fedlog.files.durable import write_file
from fedlog.report.compare.comparison import MOST_SITES, format_estimate, make_methods_table, make_sites_table
from fedlog.report.parts.axes import make_bits_axis, make_linear_axis, make_named_axis
from fedlog.report.parts.curves import (
    LOW_ROUNDS_NOTE,
    Curve,
    average_curves,
    choose_shown_accuracies,
    make_curve,
    make_curve_plots,
)
from fedlog.report.parts.plots import HorizontalLine, Plot, Point, Series
from fedlog.report.parts.render import format_percent, format_points, render_page
from fedlog.report.parts.style import Style, choose_styles
from fedlog.report.parts.tables import TextTable
from fedlog.wire.bits_text import describe_bits

SAME_ACCURACY = 5e-4  # a smaller difference of accuracies is not visible on the page
NO_GAIN = Style("training alone", "ink", "dashed")


@dataclass(frozen=True)
class ComparisonSection:
    """A section of a page: the texts, plots and tables of one comparison."""

    name: str
    title: str
    advice: str
    confirmation: str  # the gain on test rows, in a sentence
    plots: tuple[Plot, ...]
    sites_plot: Plot | None
    methods: TextTable
    sites: TextTable
    remarks: tuple[str, ...]  # warnings, then notes


def write_comparison_page(path: Path, comparisons: Sequence[tuple[Findings, Advice, Sequence[str]]]) -> Path:
    """Write a page with the advice, figures and tables of each comparison; return its path."""
    title = "Comparison on " + ", ".join(findings.data for findings, _, _ in comparisons)
    sections = [make_comparison_section(*each, number=at) for at, each in enumerate(comparisons, 1)]
    write_file(path, render_page("comparison.html.j2", title=title, sections=sections, records_version=None))
    return path


def make_comparison_section(
    findings: Findings, advice: Advice, notes: Sequence[str], number: int = 1
) -> ComparisonSection:
    """Make the section of one comparison; `number` makes the names of its figures unique on the page."""
    styles = choose_styles({label: findings.find_method(label) for label in findings.labels})
    name = f"comparison-{number}"
    curves = _read_curves(findings, styles)
    judged = curves if _find_evaluated_rows(findings) == "test" else {}
    plots = [_plot_accuracy_by_bits(findings, styles, judged, name)]
    if curves:
        plots += make_curve_plots(list(curves.values()), None, f"{_find_evaluated_rows(findings)} accuracy", name)[:1]
    return ComparisonSection(
        name=name,
        title=findings.data,
        advice=advice.sentence,
        confirmation=advice.confirmation,
        plots=tuple(plots),
        sites_plot=_plot_gains_by_site(findings, styles, name),
        methods=_replace_labels_by_names(make_methods_table(findings), styles),
        sites=_replace_labels_by_names(make_sites_table(findings), styles),
        remarks=(*findings.warnings, *notes),
    )


def _replace_labels_by_names(table: TextTable, styles: dict[str, Style]) -> TextTable:
    """Return a copy of the table with each variant's label replaced by the name that plots show for it."""
    names = {label: style.label for label, style in styles.items()}
    columns = tuple(names.get(column, column) for column in table.columns)
    rows = tuple((names.get(row[0], row[0]), *row[1:]) for row in table.rows)
    return replace(table, columns=columns, rows=rows)


def _plot_accuracy_by_bits(
    findings: Findings, styles: dict[str, Style], curves: Mapping[str, Curve], name: str
) -> Plot:
    """Plot each variant's final test accuracy by bits, with its interval.

    For variants in `curves`, also plot the test accuracy after each round. A variant that sends nothing is drawn as a
    horizontal line.
    """
    known = {label: (one, one.accuracy) for label, one in findings.results.items() if one.accuracy is not None}
    sending = {label: one for label, (one, _) in known.items() if one.bits > 0}
    paths = {
        label: _list_points_before_result(curves[label], known[label][1].value) for label in sending if label in curves
    }
    levels, series, lines, said = list[float](), list[Series](), list[HorizontalLine](), list[str]()
    for label, (each, accuracy) in known.items():
        words = f"{styles[label].label}: {format_estimate(accuracy)} %"
        low, high = _find_interval_ends(accuracy, 0.0)
        levels += (low, high)
        if label in sending:
            words += f", {describe_bits(each.bits)}"
            path, end = paths.get(label, ()), Point(each.bits, 100 * accuracy.value, words, low, high)
            levels += (
                [100 * level for level in choose_shown_accuracies([point.y / 100 for point in path])] if path else []
            )
            series.append(Series(label, styles[label], (*path, end), joined=bool(path), size=5.5))
        else:
            name_and_level = f"{styles[label].label} {format_percent(accuracy.value)}"
            lines.append(HorizontalLine(100 * accuracy.value, name_and_level, styles[label], label))
        said.append(words)
    bits = [point.x for one in series for point in one.points]
    y = make_linear_axis("%", levels)
    cut = any(point.y < y.low for one in series for point in one.points)
    return Plot(
        name=f"{name}-bits",
        title="Test accuracy by bits (%)",
        alt_text=". ".join(said) + ".",
        x=make_bits_axis("bits up and down, all sites, log axis", [b * f for b in bits for f in (0.8, 1.25)]),
        y=y,
        series=tuple(series),
        horizontal_lines=tuple(lines),
        note=" ".join([*_explain_missing_curves(findings, sending, paths), *([LOW_ROUNDS_NOTE] if cut else [])]),
        capped_intervals=True,
    )


def _list_points_before_result(curve: Curve, final_accuracy: float) -> tuple[Point, ...]:
    """Return the points of a curve without the final result, which is drawn separately.

    If the accuracy after the last round is `final_accuracy`, that round is the final result, and its point is left
    out. If not, the method trained once more after the last round, and the last round keeps its point.
    """
    points = tuple(
        Point(bits, 100 * share, f"{curve.style.label}, round {at}: {format_percent(share)}, {describe_bits(bits)}")
        for at, (share, bits) in enumerate(zip(curve.accuracy, curve.bits, strict=True), 1)
        if bits > 0
    )
    same = abs(curve.accuracy[-1] - final_accuracy) < SAME_ACCURACY
    return points[:-1] if same else points


def _explain_missing_curves(
    findings: Findings, labels: Iterable[str], curves: Mapping[str, Sequence[Point]]
) -> tuple[str, ...]:
    """Return a note, in a tuple, that says why some labels have no points in `curves`; () if all labels have some."""
    bare = [label for label in labels if not curves.get(label)]
    if not bare:
        return ()
    if _find_evaluated_rows(findings) != "test":
        return ("Only the ends: the rounds were judged on validation rows, and test rows looked at once, after them.",)
    one_round = [
        label for label in bare if all(run.summary.rounds == 1 for run in findings.find_runs_by_seed(label).values())
    ]
    gone = [label for label in bare if label not in one_round]
    return (f"Only the end of {', '.join(gone)}: the records of its rounds are no longer here.",) if gone else ()


def _find_evaluated_rows(findings: Findings) -> str:
    """Return `test` or `validation`: the rows on which the accuracy after each round was measured."""
    return next(iter(findings.runs.values())).spec.judge.kinds[0].value


def _read_curves(findings: Findings, styles: dict[str, Style]) -> dict[str, Curve]:
    """Read each variant's accuracy curve, averaged over seeds; variants without records of rounds are left out."""
    curves = {}
    for label in findings.labels:
        runs = []
        for run in findings.find_runs_by_seed(label).values():
            lines = records.read_rounds(Path(run.summary.run_dir) / RECORDS)
            if lines:
                opening = sum(run.summary.bits_opening.values())
                runs.append(make_curve(label, styles[label], lines, opening))
        if runs:
            curves[label] = average_curves(label, styles[label], runs)
    return curves


def _plot_gains_by_site(findings: Findings, styles: dict[str, Style], name: str) -> Plot | None:
    """Plot each variant's gain over training alone at each site, on validation rows; None if there are no gains."""
    others = [label for label in findings.labels if label != findings.local_label]
    sites = findings.sites[:MOST_SITES]
    if findings.local_label is None or not others:
        return None
    series, levels, said = list[Series](), [0.0], list[str]()
    for place, label in enumerate(others):
        marks = []
        for at, site in enumerate(sites):
            gain = findings.results[label].sites[site].gain
            if gain is None:
                continue
            ends = _find_interval_ends(gain)
            levels += ends
            shift = 0.7 * ((place + 0.5) / len(others) - 0.5)
            text = f"{styles[label].label} at {site}: {format_points(gain.value)} points"
            marks.append(Point(at + shift, 100 * gain.value, text, *ends))
            said.append(text)
        series.append(Series(label, styles[label], tuple(marks), joined=False))
    if len(levels) == 1:
        return None
    more = (
        f" Shown are the first {MOST_SITES} of {len(findings.sites)} sites." if len(findings.sites) > MOST_SITES else ""
    )
    return Plot(
        name=f"{name}-sites",
        title="Gain over training alone at each site (points, validation rows)",
        alt_text=". ".join(said) + "." + more,
        x=make_named_axis("site", [_shorten_site_name(site) for site in sites]),
        y=make_linear_axis("points", levels),
        series=tuple(series),
        horizontal_lines=(HorizontalLine(0.0, "training alone", NO_GAIN),),
        note=more.strip(),
        capped_intervals=True,
    )


def _shorten_site_name(name: str) -> str:
    return name if len(name) <= 10 else name[:9] + "…"


def _find_interval_ends(estimate: Estimate, least: float = -100.0) -> tuple[float, float]:
    """Return the ends of the estimate's interval in per cent, limited to the range from `least` to 100."""
    half = estimate.half_width or 0.0
    return max(least, 100 * (estimate.value - half)), min(100.0, 100 * (estimate.value + half))
