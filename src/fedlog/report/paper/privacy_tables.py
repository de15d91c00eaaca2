"""Make the tables and the figure of the privacy experiment.

A formula computes the epsilon of a level of noise. The tables show the epsilon of each level by each formula, runs that
check the formulas, and runs with a privacy guarantee.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from fedlog.core.clip import parse_clip
from fedlog.experiments.tables.cells import TableRow
from fedlog.experiments.tables.finished_cells import FinishedRuns, RunResult
from fedlog.experiments.tables.privacy_figure import (
    CLIENTS,
    CLIPS,
    DELTAS,
    EPSILON_FORMULAS,
    LEVELS,
    NOISE_DRAWS,
    REPEATED_LEVELS,
    VERIFIED_CLIP,
    VERIFIED_LEVEL,
    find_epsilon_formula,
    make_name_of_repeated_row,
    make_name_of_row_with_noise,
    make_name_of_row_without_noise,
)
from fedlog.experiments.tables.significance import Mean
from fedlog.privacy.guarantee import Calibration, Trust, Unit
from fedlog.report.parts.matplotlib_figure import ShownFigure, convert_figure_to_svg
from fedlog.report.parts.style import COLOURS
from fedlog.report.parts.tables import NOT_RUN, TextTable, format_mean, format_mean_of_values

COLUMNS = 101  # columns of the statistics: the body's hundred features and the constant
CLIP_LINES = {"clamp": "--", "l2": "-"}
FORMULA_COLOURS = {
    (Calibration.EXACT, Trust.CENTRAL): COLOURS["blue"],
    (Calibration.EXACT, Trust.LOCAL): COLOURS["vermillion"],
    (Calibration.PAPER, Trust.CENTRAL): COLOURS["green"],
    (Calibration.PAPER, Trust.LOCAL): COLOURS["ochre"],
}


def make_privacy_tables(finished: FinishedRuns) -> list[TextTable]:
    """Make four tables: levels of noise, repeated draws of noise, checks of the formulas, and runs with a guarantee."""
    return [
        make_noise_level_table(finished),
        make_repeated_noise_table(finished),
        make_verification_table(finished),
        make_guarantee_table(finished),
    ]


def make_noise_level_table(finished: FinishedRuns) -> TextTable:
    """Make a table of accuracy by clip and level of noise, with the epsilon of each level by each formula."""
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
        without = _format_accuracy(finished, make_name_of_row_without_noise(clip))
        rows.append((named, "none", "0", without, "", *[""] * len(EPSILON_FORMULAS)))
        for level in LEVELS:
            name, std = make_name_of_row_with_noise(clip, level), level * parse_clip(named).sensitivity(COLUMNS)
            epsilons = (
                formula.compute_epsilon(level, count_releases(finished), CLIENTS) for formula in EPSILON_FORMULAS
            )
            labels = (f"{epsilon:.3g}" if epsilon else "0 (delta alone covers it)" for epsilon in epsilons)
            cells = (f"{std:.4g}", _format_accuracy(finished, name), _format_rounds_with_old_head(finished.runs[name]))
            rows.append((named, f"{level}", *cells, *labels))
    notes = (
        "The columns on the right: what each formula would call epsilon at that level, for bodies that never saw the "
        "records. These bodies did see them, so none of the numbers is a guarantee.",
        "`local`: every client adds the noise, and the sum has ten times its std.",
    )
    return TextTable(columns, tuple(rows), f"Accuracy by noise on the sum, {count_releases(finished)} releases", notes)


def count_releases(finished: FinishedRuns) -> int:
    """Return how many releases a run of this experiment makes: one in each of its rounds."""
    return finished.experiment.find_row(make_name_of_row_with_noise(VERIFIED_CLIP, VERIFIED_LEVEL)).spec.rounds or 0


def make_repeated_noise_table(finished: FinishedRuns) -> TextTable:
    """Make a table of accuracies of runs that differ only in the draw of the noise, and their standard deviation."""
    rows = []
    for level in REPEATED_LEVELS:
        names = [make_name_of_repeated_row(level, draw) for draw in NOISE_DRAWS]
        (seed,) = finished.experiment.find_row(names[0]).seeds
        finals = [
            finished.find_final_accuracies(name).get(seed)
            for name in (make_name_of_row_with_noise(VERIFIED_CLIP, level), *names)
        ]
        known = [accuracy for accuracy in finals if accuracy is not None]
        shown = (NOT_RUN if accuracy is None else f"{accuracy:.2f}" for accuracy in finals)
        rows.append((f"{level}", *shown, f"{statistics.stdev(known):.2f}" if len(known) > 1 else ""))
    columns = (
        "noise on the sum, x a record's share",
        "the seed's own draw, %",
        *(f"draw {draw}, %" for draw in NOISE_DRAWS),
        "standard deviation, points",
    )
    return TextTable(columns, tuple(rows), f"The luck of the noise: {CLIPS[VERIFIED_CLIP]}, one seed, other draws")


def make_verification_table(finished: FinishedRuns) -> TextTable:
    """Make a table that checks the formulas by runs.

    Each of these runs was given the epsilon that a formula computes for VERIFIED_LEVEL. The table shows its accuracy
    beside the accuracy of the run that was given this level of noise: the two should be about the same.
    """
    expected = finished.find_final_accuracies(make_name_of_row_with_noise(VERIFIED_CLIP, VERIFIED_LEVEL))
    rows = []
    for row in finished.experiment.rows:
        if not row.name.startswith("verify-"):
            continue
        own = finished.find_final_accuracies(row.name)
        common = [seed for seed in own if seed in expected]
        if not common:
            rows.append((row.label, NOT_RUN, "", ""))
            continue
        real, level = (Mean.from_values([accuracies[seed] for seed in common]) for accuracies in (own, expected))
        rows.append((row.label, format_mean(real), format_mean(level), f"{real.value - level.value:+.2f}"))
    columns = ("a real run", "accuracy, %", f"level {VERIFIED_LEVEL}, same seed, %", "difference, points")
    return TextTable(columns, tuple(rows), "Relabelling, checked by runs")


def make_guarantee_table(finished: FinishedRuns) -> TextTable:
    """Make a table of the runs with a privacy guarantee: epsilon, unit, accuracy, and the accuracy without noise."""
    promising = (row for row in finished.experiment.rows if row.spec.privacy in (Unit.RECORD, Unit.CLIENT))
    return TextTable.from_rows(
        (_make_guarantee_row(row, finished) for row in promising), "What is promised, and what it costs"
    )


def make_short_guarantee_table(finished: FinishedRuns) -> TextTable:
    """Make the table of the runs with a privacy guarantee, without the columns on neighbours and on trusted parties."""
    whole = make_guarantee_table(finished)
    kept = [at for at, name in enumerate(whole.columns) if name not in ("neighbours", "trusted")]
    rows = tuple(tuple(row[at] for at in kept) for row in whole.rows)
    return TextTable(tuple(whole.columns[at] for at in kept), rows)


def _make_guarantee_row(row: TableRow, finished: FinishedRuns) -> dict[str, str]:
    """Make the table row of runs with a privacy guarantee, from their records or, if there are none, their settings."""
    runs, spec = finished.runs[row.name], row.spec
    stated = (runs[0].summary.privacy or {}) if runs else {"epsilon": spec.epsilon, "releases": spec.rounds}
    reference = finished.runs[
        "frozen-no-noise" if spec.privacy == Unit.RECORD else make_name_of_row_without_noise("l2")
    ]
    rounds = spec.rounds or 0
    without = format_mean_of_values(
        100 * run.rounds[rounds - 1].accuracy_mean_over_clients for run in reference if len(run.rounds) >= rounds
    )
    return {
        "cell": row.label,
        "epsilon": "unbounded" if stated.get("epsilon") is None else f"{stated['epsilon']:.4g}",
        "delta": f"{spec.delta:g}",
        "unit": str(spec.privacy),
        "neighbours": str(stated.get("neighbours", "")),
        "trusted": str(stated.get("trusted", "")).partition(",")[0],
        "releases": str(stated.get("releases", "")),
        "seeds": str(len(runs)),
        "accuracy, %": _format_accuracy(finished, row.name),
        "without noise and message norm, %": without or NOT_RUN if runs else "",
        "rounds with the old head": _format_rounds_with_old_head(runs),
    }


def _format_accuracy(finished: FinishedRuns, row: str) -> str:
    """Format the row's mean accuracy after the final round; `not run` if it has no runs."""
    return format_mean_of_values(finished.find_final_accuracies(row).values()) or NOT_RUN


def _format_rounds_with_old_head(runs: Sequence[RunResult]) -> str:
    """Format, for each run, the number of rounds without a new head; the numbers are separated by commas."""
    return ", ".join(str((run.summary.privacy or {}).get("rounds_with_old_head", "")) for run in runs)


def draw_privacy_figure(finished: FinishedRuns) -> str:
    """Draw accuracy by noise and by epsilon for each delta, as SVG; crosses are runs that check a formula."""
    figure = ShownFigure((14, 4.5))
    panels = figure.subplots(1, 1 + len(DELTAS), sharey=True)
    _draw_accuracy_by_noise(panels[0], finished)
    for axes, delta in zip(panels[1:], DELTAS, strict=True):
        _draw_accuracy_by_epsilon(axes, finished, delta)
    for axes in panels:
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize="x-small")
    return convert_figure_to_svg(figure)


def _draw_accuracy_by_noise(axes: Axes, finished: FinishedRuns) -> None:
    """Draw accuracy by the std of the noise, a line for each clip, and a horizontal line for no noise."""
    for clip, named in CLIPS.items():
        unit, means = parse_clip(named).sensitivity(COLUMNS), _compute_mean_accuracies(finished, clip)
        if means:
            spots = ([level * unit for level in means], list(means.values()))
            axes.plot(*spots, CLIP_LINES[clip], marker="o", color="black", label=named)
        without = finished.find_final_accuracies(make_name_of_row_without_noise(clip))
        if without:
            level = Mean.from_values(list(without.values())).value
            axes.axhline(level, linestyle=CLIP_LINES[clip], color="grey", linewidth=0.8, label=f"{named}, no noise")
    axes.set(xscale="log", xlabel="std of the noise on the sum", ylabel="test accuracy, mean over clients (%)")


def _compute_mean_accuracies(finished: FinishedRuns, clip: str) -> dict[int, float]:
    """Return the mean accuracy of each level of noise that was run with this clip."""
    finals = {
        level: list(finished.find_final_accuracies(make_name_of_row_with_noise(clip, level)).values())
        for level in LEVELS
    }
    return {level: Mean.from_values(values).value for level, values in finals.items() if values}


def _draw_accuracy_by_epsilon(axes: Axes, finished: FinishedRuns, delta: float) -> None:
    """Draw accuracy against epsilon at this delta: a line for each formula of epsilon and each clip.

    Crosses are runs that were made to check a formula.
    """
    for formula in EPSILON_FORMULAS:
        for clip, named in CLIPS.items() if formula.delta == delta else ():
            means = _compute_mean_accuracies(finished, clip)
            epsilons = {level: formula.compute_epsilon(level, count_releases(finished), CLIENTS) for level in means}
            spots = [(epsilons[level], accuracy) for level, accuracy in means.items() if epsilons[level] > 0]
            if spots:
                look = FORMULA_COLOURS[formula.calibration, formula.trust]
                drawn: dict[str, Any] = {"marker": look.marker, "markersize": 3, "color": look.light}
                label = f"{formula.calibration}, {formula.trust}, {named}"
                axes.plot(*zip(*spots, strict=True), CLIP_LINES[clip], label=label, **drawn)
    for row in finished.experiment.rows:
        checked, finals = find_epsilon_formula(row.spec), list(finished.find_final_accuracies(row.name).values())
        if row.name.startswith("verify-") and checked is not None and checked.delta == delta and finals:
            colour = FORMULA_COLOURS[checked.calibration, checked.trust].light
            axes.plot(row.spec.epsilon or 0.0, Mean.from_values(finals).value, "x", markersize=9, color=colour)
    axes.set(xscale="log", xlim=(0.02, 300), xlabel=f"epsilon as a label, delta {delta:g} (no guarantee)")
