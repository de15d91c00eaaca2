"""The tables and the picture of the experiment `when-to-choose`, which compares methods with training alone.

They are compared in several conditions. A condition is a data set and the way it is divided among clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from fedlog.experiments.tables.finished_cells import FinishedRuns, RunResult, collect_runs
from fedlog.experiments.tables.significance import Mean, compute_mean_difference
from fedlog.experiments.tables.tuning_grids import METHODS
from fedlog.experiments.tables.when_to_choose import CONDITIONS, ROUNDS, SHOWN_ROUNDS, WHEN_TO_CHOOSE, Condition
from fedlog.report.paper.comparisons import format_gain, judge_gain
from fedlog.report.paper.figures import read_accuracy_curves
from fedlog.report.parts.matplotlib_figure import ShownFigure, convert_figure_to_svg
from fedlog.report.parts.style import METHODS as STYLES
from fedlog.report.parts.tables import NOT_RUN, TextTable, format_mean_of_values, replace_marked_text
from fedlog.wire.bits_text import describe_bits

ALONE = "local"
EARLY_ROUND = 5  # the round of an early comparison
BUDGETS = (1e5, 1e6, 1e7)  # bits of all clients, both ways
LATE_ROUNDS = 10
PANELS = 4  # of the picture, in a row
MARK, END_MARK = "<!-- when to choose: written by `fedlog docs` -->", "<!-- end of when to choose -->"


def make_conditions_tables(finished: FinishedRuns) -> list[TextTable]:
    """Make two tables: accuracy by round, with the gain over training alone; and accuracy by bits."""
    return [make_rounds_table(finished), make_bits_table(finished)]


def make_rounds_table(finished: FinishedRuns) -> TextTable:
    """Make a table of accuracies after early and late rounds and of gains over training alone.

    It has a row for each condition and method.
    """
    rows = [
        _make_round_row(condition, method, finished)
        for condition, method in _list_conditions_and_finished_methods(finished)
    ]
    notes = (*_list_notes_on_late_changes(finished), *_list_notes_on_missing_methods(finished))
    return TextTable.from_rows(rows, "Accuracy by round in %, and points over training alone", notes)


def _list_conditions_and_finished_methods(finished: FinishedRuns) -> Iterator[tuple[Condition, str]]:
    """Yield each pair (condition, method) that has a finished run."""
    pairs = ((condition, method) for condition in CONDITIONS for method in METHODS)
    return ((condition, method) for condition, method in pairs if finished.runs[condition.make_row_name(method)])


def _make_round_row(condition: Condition, method: str, finished: FinishedRuns) -> dict[str, str]:
    row, alone = condition.make_row_name(method), condition.make_row_name(ALONE)
    early, last = (
        None
        if row == alone
        else compute_mean_difference(
            finished.find_accuracies_after_round(row, number), finished.find_accuracies_after_round(alone, number)
        )
        for number in (EARLY_ROUND, ROUNDS)
    )
    return {
        "condition, method": f"{condition.title}: {STYLES[method].label}",
        "seeds": str(len(finished.runs[row])),
        **{
            f"round {number}": format_mean_of_values(finished.find_accuracies_after_round(row, number).values(), 1)
            for number in SHOWN_ROUNDS
        },
        f"over alone, round {EARLY_ROUND} [95 %]": format_gain(early, 1),
        f"over alone, round {ROUNDS} [95 %]": format_gain(last, 1),
        "verdict": judge_gain(last),
    }


def _list_notes_on_missing_methods(finished: FinishedRuns) -> tuple[str, ...]:
    """Return a note that names the conditions and methods that have not been run; empty if all have."""
    missing = []
    for condition in CONDITIONS:
        absent = [method for method in METHODS if not finished.runs[condition.make_row_name(method)]]
        if len(absent) == len(METHODS):
            missing.append(condition.title)
        elif absent:
            missing.append(f"{condition.title} ({', '.join(STYLES[method].label for method in absent)})")
    return (f"{NOT_RUN.capitalize()}: {'; '.join(missing)}.",) if missing else ()


def _list_notes_on_late_changes(finished: FinishedRuns) -> tuple[str, ...]:
    """Return a note on how much the accuracy of training alone still changed in the last rounds."""
    changes = []
    for condition in CONDITIONS:
        runs = finished.runs[condition.make_row_name(ALONE)]
        if runs:
            curves = read_accuracy_curves(runs)
            last, before = curves[:, -LATE_ROUNDS:], curves[:, -2 * LATE_ROUNDS : -LATE_ROUNDS]
            changes.append(f"{condition.title} {last.mean() - before.mean():+.1f}")
    if not changes:
        return ()
    return (
        "Training alone has levelled off. Its change in points, from the mean of the last-but-one "
        f"{LATE_ROUNDS} rounds to that of the last {LATE_ROUNDS}: {'; '.join(changes)}.",
    )


def make_bits_table(finished: FinishedRuns) -> TextTable:
    """Make a table of each method's bits in a whole run, and its accuracy within several budgets of bits."""
    rows = []
    for condition, method in _list_conditions_and_finished_methods(finished):
        if method != ALONE:
            runs = finished.runs[condition.make_row_name(method)]
            total = Mean.from_values([run.bits_so_far_by_round[-1] for run in runs]).value
            named = {
                "condition, method": f"{condition.title}: {STYLES[method].label}",
                "bits of the run": describe_bits(total),
            }
            spent = {
                f"{describe_bits(budget)} spent, %": _format_accuracy_within_budget(runs, budget) for budget in BUDGETS
            }
            rows.append({**named, **spent})
    notes = (
        "Bits: all clients, both directions, with the opening exchange.",
        "A budget that is not enough for one round: blank. One that is enough for all rounds: the last round.",
    )
    return TextTable.from_rows(rows, "Accuracy by bits", notes)


def _format_accuracy_within_budget(runs: Sequence[RunResult], budget: float) -> str:
    """Format the mean accuracy after the last round within a budget of bits; blank if a seed has no such round."""
    within = [sum(bits <= budget for bits in run.bits_so_far_by_round) for run in runs]
    if not all(within):
        return ""
    return format_mean_of_values(
        (100 * run.rounds[at - 1].accuracy_mean_over_clients for run, at in zip(runs, within, strict=True)), 1
    )


def draw_conditions_figure(finished: FinishedRuns) -> str:
    """Draw a figure as SVG, with one panel for each condition: accuracy by round, with a logarithmic axis of rounds."""
    drawn = [condition for condition in CONDITIONS if finished.runs[condition.make_row_name(ALONE)]]
    down, across = -(-len(drawn) // PANELS), min(PANELS, len(drawn))
    figure = ShownFigure((max(7.0, 3.25 * across), 3.4 * down))
    panels = np.atleast_1d(figure.subplots(down, across)).ravel()
    for axes in panels[len(drawn) :]:
        axes.set_axis_off()
    for axes, condition in zip(panels, drawn, strict=False):
        _draw_panel(axes, finished, condition)
    panels[0].set_ylabel("test accuracy, mean over clients (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=PANELS, fontsize="small", frameon=False)
    return convert_figure_to_svg(figure)


def _draw_panel(axes: Axes, finished: FinishedRuns, condition: Condition) -> None:
    """Draw the curves of all methods in one condition."""
    for method in METHODS:
        runs = finished.runs[condition.make_row_name(method)]
        if not runs:
            continue
        curves, style = read_accuracy_curves(runs), STYLES[method]
        rounds = np.arange(1, curves.shape[1] + 1)
        axes.plot(rounds, curves.mean(0), label=style.label, linewidth=1.3, **style.matplotlib_line)
    axes.set_title(condition.title, fontsize="small")
    axes.set_xscale("log")
    axes.set_xticks(SHOWN_ROUNDS, [str(number) for number in SHOWN_ROUNDS])
    axes.minorticks_off()
    axes.set_xlabel("round", fontsize="small")
    axes.grid(alpha=0.3)


def make_short_conditions_table(finished: FinishedRuns) -> TextTable:
    """Make a table with one row for each condition: each method's accuracy after an early and after the last round."""
    rows = []
    for condition in CONDITIONS:
        names = [condition.make_row_name(method) for method in METHODS]
        seeds = min(len(finished.runs[name]) for name in names)
        if seeds:
            cells = (
                " → ".join(
                    f"{Mean.from_values(list(finished.find_accuracies_after_round(name, number).values())).value:.1f}"
                    for number in (EARLY_ROUND, ROUNDS)
                )
                for name in names
            )
            rows.append((f"{condition.title} ({seeds} seeds)", *cells))
    columns = (f"round {EARLY_ROUND} → round {ROUNDS}, %", *(STYLES[method].label for method in METHODS))
    return TextTable(columns, tuple(rows))


def write_when_to_choose_table(results: Path, page: Path) -> list[Path]:
    """Replace the table of `when-to-choose` in the page, and return [page]; return [] if the page does not exist."""
    return replace_marked_text(
        page, MARK, END_MARK, make_short_conditions_table(collect_runs(WHEN_TO_CHOOSE, results)).to_markdown()
    )
