"""Tables and a figure of the privacy experiment: epsilons by formula, runs that check them, and guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedlog.core.clip import parse_clip
from fedlog.experiments.tables.cells import Row
from fedlog.experiments.tables.finished_cells import Collected, RunResult
from fedlog.experiments.tables.privacy_figure import (
    CLIENTS,
    CLIPS,
    DELTAS,
    EPSILON_FORMULAS,
    LEVELS,
    VERIFIED_CLIP,
    VERIFIED_LEVEL,
    EpsilonFormula,
    find_epsilon_formula,
    name_level_row,
    name_row_without_noise,
)
from fedlog.experiments.tables.significance import Mean
from fedlog.privacy.guarantee import Calibration, Trust, Unit
from fedlog.report.paper.figures import svg
from fedlog.report.parts.style import COLOURS
from fedlog.report.parts.tables import NOT_RUN, TextTable, with_error

WIDTH = 101  # columns of the statistics: the body's hundred features and the constant
STYLES = {"clamp": "--", "l2": "-"}
FORMULA_COLOURS = {
    (Calibration.EXACT, Trust.CENTRAL): COLOURS["blue"],
    (Calibration.EXACT, Trust.LOCAL): COLOURS["vermillion"],
    (Calibration.PAPER, Trust.CENTRAL): COLOURS["green"],
    (Calibration.PAPER, Trust.LOCAL): COLOURS["ochre"],
}


def privacy_tables(found: Collected) -> list[TextTable]:
    """Three tables: levels of noise with their epsilons, the runs that check them, and the guarantees."""
    return [level_table(found), verification_table(found), guarantee_table(found)]


def level_table(found: Collected) -> TextTable:
    """A table of accuracy by clip and level of noise, with the epsilon of each level under every formula."""
    columns = (
        "clip",
        "noise on the sum, x a record's share",
        "std",
        "accuracy, %",
        "rounds with the old head",
        *(f"{r.calibration} {r.trust}, delta {r.delta:g}" for r in EPSILON_FORMULAS),
    )
    rows = []
    for clip, named in CLIPS.items():
        runs = found.runs[name_row_without_noise(clip)]
        rows.append((named, "none", "0", _accuracy(runs), "", *[""] * len(EPSILON_FORMULAS)))
        for level in LEVELS:
            runs = found.runs[name_level_row(clip, level)]
            std = level * parse_clip(named).sensitivity(WIDTH)
            labels = (_label(formula, level, releases_of(found)) for formula in EPSILON_FORMULAS)
            rows.append((named, f"{level}", f"{std:.4g}", _accuracy(runs), _old_head_text(runs), *labels))
    notes = (
        "The columns on the right are what each formula would call epsilon at that level, for bodies that never saw "
        "the records; these did, so none of them is a guarantee. `local`: every client adds the noise, and the sum has "
        "ten times its std.",
    )
    return TextTable(columns, tuple(rows), f"Accuracy by noise on the sum, {releases_of(found)} releases", notes)


def releases_of(found: Collected) -> int:
    """How many releases a run of this experiment makes: one in each of its rounds."""
    return found.experiment.row(name_level_row(VERIFIED_CLIP, VERIFIED_LEVEL)).spec.rounds or 0


def verification_table(found: Collected) -> TextTable:
    """A table of the runs with other formulas, beside the runs with the same level of noise, on the same seeds."""
    expected = {run.seed: run for run in found.runs[name_level_row(VERIFIED_CLIP, VERIFIED_LEVEL)]}
    rows = []
    for row in found.experiment.rows:
        if not row.name.startswith("verify-"):
            continue
        pairs = [(run, expected[run.seed]) for run in found.runs[row.name] if run.seed in expected]
        if not pairs:
            rows.append((row.label, NOT_RUN, "", ""))
            continue
        real, level = (Mean.of([_percent(pair[at]) for pair in pairs]) for at in (0, 1))
        rows.append((row.label, with_error(real), with_error(level), f"{real.value - level.value:+.2f}"))
    columns = ("a real run", "accuracy, %", f"level {VERIFIED_LEVEL}, same seed, %", "difference, points")
    return TextTable(columns, tuple(rows), "Relabelling, checked by runs")


def guarantee_table(found: Collected) -> TextTable:
    """A table of the runs with a guarantee: epsilon, unit, accuracy, and the accuracy without noise."""
    columns = (
        "cell",
        "epsilon",
        "delta",
        "unit",
        "neighbours",
        "trusted",
        "releases",
        "seeds",
        "accuracy, %",
        "without noise and message norm, %",
        "rounds with the old head",
    )
    promising = (row for row in found.experiment.rows if row.spec.privacy in (Unit.RECORD, Unit.CLIENT))
    rows = tuple(_guarantee_row(row, found) for row in promising)
    return TextTable(columns, rows, "What is promised, and what it costs")


def short_guarantee_table(found: Collected) -> TextTable:
    """The table of guarantees with fewer columns."""
    whole = guarantee_table(found)
    kept = [whole.columns.index(name) for name in ("cell", "epsilon", "delta", "unit", "releases", "seeds")]
    kept += range(whole.columns.index("accuracy, %"), len(whole.columns))
    rows = tuple(tuple(row[at] for at in kept) for row in whole.rows)
    return TextTable(tuple(whole.columns[at] for at in kept), rows)


def _guarantee_row(row: Row, found: Collected) -> tuple[str, ...]:
    runs = found.runs[row.name]
    asked = (f"{row.spec.epsilon:g}", f"{row.spec.delta:g}", str(row.spec.privacy))
    if not runs:
        return (row.label, *asked, "", "", f"{row.spec.rounds}", "0", NOT_RUN, "", "")
    stated = runs[0].summary.privacy or {}
    frozen = row.spec.privacy == Unit.RECORD
    reference = found.runs["frozen-no-noise" if frozen else name_row_without_noise("l2")]
    rounds = row.spec.rounds or 0
    without = [
        100 * run.rounds[rounds - 1].accuracy_mean_over_clients for run in reference if len(run.rounds) >= rounds
    ]
    return (
        row.label,
        "unbounded" if stated.get("epsilon") is None else f"{stated['epsilon']:.4g}",
        asked[1],
        asked[2],
        str(stated.get("neighbours", "")),
        str(stated.get("trusted", "")).partition(",")[0],
        str(stated.get("releases", "")),
        str(len(runs)),
        _accuracy(runs),
        with_error(Mean.of(without)) if without else NOT_RUN,
        _old_head_text(runs),
    )


def points(found: Collected, formula: EpsilonFormula, clip: str) -> Iterator[tuple[float, float]]:
    """(epsilon, accuracy) of each level that was run; the epsilon is that of the formula."""
    for level in LEVELS:
        runs = found.runs[name_level_row(clip, level)]
        if runs:
            epsilon = formula.epsilon(level, releases_of(found), CLIENTS)
            yield epsilon, Mean.of([_percent(run) for run in runs]).value


def find_verified_points(found: Collected, delta: float) -> Iterator[tuple[EpsilonFormula, float, float]]:
    """(formula, epsilon, accuracy) of each run that checks a formula, at this delta."""
    for row in found.experiment.rows:
        formula = find_epsilon_formula(row.spec)
        if row.name.startswith("verify-") and formula is not None and formula.delta == delta and found.runs[row.name]:
            accuracy = Mean.of([_percent(run) for run in found.runs[row.name]]).value
            yield formula, row.spec.epsilon or 0.0, accuracy


def _label(formula: EpsilonFormula, level: float, releases: int) -> str:
    epsilon = formula.epsilon(level, releases, CLIENTS)
    return f"{epsilon:.3g}" if epsilon else "0 (delta alone covers it)"


def _accuracy(runs: Sequence[RunResult]) -> str:
    return with_error(Mean.of([_percent(run) for run in runs])) if runs else NOT_RUN


def _percent(run: RunResult) -> float:
    return 100 * run.summary.accuracy_mean_over_clients


def _old_head_text(runs: Sequence[RunResult]) -> str:
    return ", ".join(str((run.summary.privacy or {}).get("rounds_with_old_head", "")) for run in runs)


def privacy_plot(found: Collected) -> str:
    """A figure of accuracy in three panels: by noise on the sum, and by epsilon at each delta; crosses are checks."""
    figure = Figure(figsize=(14, 4.5), layout="constrained")
    panels = figure.subplots(1, 1 + len(DELTAS), sharey=True)
    _by_noise(panels[0], found)
    for axes, delta in zip(panels[1:], DELTAS, strict=True):
        _by_epsilon(axes, found, delta)
    for axes in panels:
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="x-small")
    return svg(figure)


def _by_noise(axes: Axes, found: Collected) -> None:
    for clip, named in CLIPS.items():
        unit = parse_clip(named).sensitivity(WIDTH)
        drawn = [(level * unit, found.final(name_level_row(clip, level))) for level in LEVELS]
        spots = [(std, sum(finals.values()) / len(finals)) for std, finals in drawn if finals]
        if spots:
            axes.plot(*zip(*spots, strict=True), STYLES[clip], marker="o", color="black", label=named)
        without = found.final(name_row_without_noise(clip))
        if without:
            level = sum(without.values()) / len(without)
            axes.axhline(level, linestyle=STYLES[clip], color="grey", linewidth=0.8, label=f"{named}, no noise")
    axes.set(xscale="log", xlabel="std of the noise on the sum", ylabel="test accuracy, mean over clients (%)")


def _by_epsilon(axes: Axes, found: Collected, delta: float) -> None:
    for formula in EPSILON_FORMULAS:
        if formula.delta != delta:
            continue
        for clip, named in CLIPS.items():
            spots = [(epsilon, accuracy) for epsilon, accuracy in points(found, formula, clip) if epsilon > 0]
            if spots:
                look = FORMULA_COLOURS[formula.calibration, formula.trust]
                drawn: dict[str, Any] = {"marker": look.marker, "markersize": 3, "color": look.light}
                label = f"{formula.calibration}, {formula.trust}, {named}"
                axes.plot(*zip(*spots, strict=True), STYLES[clip], label=label, **drawn)
    for formula, epsilon, accuracy in find_verified_points(found, delta):
        colour = FORMULA_COLOURS[formula.calibration, formula.trust].light
        axes.plot(epsilon, accuracy, "x", markersize=9, color=colour)
    axes.set(xscale="log", xlim=(0.02, 300), xlabel=f"epsilon as a label, delta {delta:g} (no guarantee)")
