"""One page for a comparison: the advice, then its figures and tables; for a folder of runs, the runs as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedlog.experiments.compare.advice import Advice
from fedlog.experiments.compare.estimates import Estimate
from fedlog.experiments.compare.findings import Findings
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import RECORDS
from fedlog.files.durable import write_file
from fedlog.report.axes import bits_axis, named_axis, straight_axis
from fedlog.report.comparison import methods_table, sites_table
from fedlog.report.curves import curve_plots, make_curve, mean_curve
from fedlog.report.plots import Plot, Point, Rule, Series
from fedlog.report.render import percent, points, render_page
from fedlog.report.style import Style, styles_of
from fedlog.report.tables import TextTable
from fedlog.wire.bits_text import describe_bits

MOST_SITES = 12  # in the figure; all of them are in the table
ZERO = Style("training alone", "ink", "dashed")


@dataclass(frozen=True)
class ComparisonSection:
    """One comparison, ready for a page."""

    name: str
    title: str
    advice: str
    confirmation: str
    plots: tuple[Plot, ...]
    sites_plot: Plot | None
    methods: TextTable
    sites: TextTable
    remarks: tuple[str, ...]


def write_comparison_page(path: Path, found: Sequence[tuple[Findings, Advice, Sequence[str]]]) -> Path:
    """Write one page: for each comparison its advice, its figures and its tables."""
    title = "Comparison on " + ", ".join(findings.data for findings, _, _ in found)
    sections = [comparison_section(*each, number=at) for at, each in enumerate(found, 1)]
    write_file(path, render_page("comparison.html.j2", title=title, sections=sections, live=None))
    return path


def comparison_section(findings: Findings, advice: Advice, notes: Sequence[str], number: int = 1) -> ComparisonSection:
    """One comparison; `number` tells its figures from those of another on the same page."""
    styles = styles_of({label: findings.method_of(label) for label in findings.labels})
    name = f"comparison-{number}"
    plots = [_accuracy_by_bits(findings, styles, name), *_curves(findings, styles, name)]
    return ComparisonSection(
        name=name,
        title=findings.data,
        advice=advice.sentence,
        confirmation=advice.confirmation,
        plots=tuple(plots),
        sites_plot=_gain_by_site(findings, styles, name),
        methods=_for_people(methods_table(findings), styles),
        sites=_for_people(sites_table(findings), styles),
        remarks=(*findings.warnings, *notes),
    )


def _for_people(table: TextTable, styles: dict[str, Style]) -> TextTable:
    """The table with methods called as in the figures."""
    names = {label: style.label for label, style in styles.items()}
    columns = tuple(names.get(column, column) for column in table.columns)
    rows = tuple((names.get(row[0], row[0]), *row[1:]) for row in table.rows)
    return replace(table, columns=columns, rows=rows)


def _accuracy_by_bits(findings: Findings, styles: dict[str, Style], name: str) -> Plot:
    """Accuracy with its interval against bits; what sends nothing is a level line."""
    known = {label: each for label, each in findings.figures.items() if each.accuracy is not None}
    sending = {label: each for label, each in known.items() if each.bits > 0}
    levels, series, rules, said = list[float](), list[Series](), list[Rule](), list[str]()
    for label, each in known.items():
        assert each.accuracy is not None
        words = f"{styles[label].label}: {_interval(each.accuracy)}"
        levels += _ends(each.accuracy, 0.0)
        if label in sending:
            low, high = _ends(each.accuracy, 0.0)
            words += f", {describe_bits(each.bits)}"
            point = Point(each.bits, 100 * each.accuracy.value, words, low, high)
            series.append(Series(label, styles[label], (point,), joined=False, size=5.5))
        else:
            value = each.accuracy.value
            rules.append(Rule(100 * value, f"{styles[label].label} {percent(value)}", styles[label], label))
        said.append(words)
    bits = [each.bits for each in sending.values()]
    return Plot(
        name=f"{name}-bits",
        title="Test accuracy by bits (%)",
        alternative=". ".join(said) + ".",
        x=bits_axis("bits up and down, all sites, log axis", [b * f for b in bits for f in (0.8, 1.25)]),
        y=straight_axis("%", levels),
        series=tuple(series),
        rules=tuple(rules),
        capped=True,
    )


def _curves(findings: Findings, styles: dict[str, Style], name: str) -> list[Plot]:
    """The mean accuracy over the seeds by round, where the records of the runs are still there."""
    curves = []
    for label in findings.labels:
        runs = []
        for run in findings.by_seed(label).values():
            lines = records.read(Path(run.summary.run_dir) / RECORDS)
            if lines:
                opening = sum(run.summary.bits_opening.values())
                runs.append(make_curve(label, styles[label], lines, opening))
        if runs:
            curves.append(mean_curve(label, styles[label], runs))
    if not curves:
        return []
    judged = next(iter(findings.runs.values())).spec.judge.value
    return curve_plots(curves, None, f"{judged} accuracy", name)[:1]


def _gain_by_site(findings: Findings, styles: dict[str, Style], name: str) -> Plot | None:
    """What each method gains at each site over training alone, on validation rows."""
    others = [label for label in findings.labels if label != findings.alone]
    sites = findings.sites[:MOST_SITES]
    if findings.alone is None or not others:
        return None
    series, levels, said = list[Series](), [0.0], list[str]()
    for place, label in enumerate(others):
        marks = []
        for at, site in enumerate(sites):
            gain = findings.figures[label].sites[site].gain
            if gain is None:
                continue
            ends = _ends(gain)
            levels += ends
            shift = 0.7 * ((place + 0.5) / len(others) - 0.5)
            text = f"{styles[label].label} at {site}: {points(gain.value)} points"
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
        alternative=". ".join(said) + "." + more,
        x=named_axis("site", [_short(site) for site in sites]),
        y=straight_axis("points", levels),
        series=tuple(series),
        rules=(Rule(0.0, "training alone", ZERO),),
        note=more.strip(),
        capped=True,
    )


def _short(name: str) -> str:
    return name if len(name) <= 10 else name[:9] + "…"


def _ends(found: Estimate, least: float = -100.0) -> tuple[float, float]:
    """The ends of the interval in per cent or points, as far as there can be any."""
    half = found.half_width or 0.0
    return max(least, 100 * (found.value - half)), min(100.0, 100 * (found.value + half))


def _interval(found: Estimate) -> str:
    half = "" if found.half_width is None else f" ± {100 * found.half_width:.1f}"
    return f"{100 * found.value:.1f}{half} %"
