"""The tables and the picture of `when-to-choose`: methods against training alone in several conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import t

from fedlog.experiments.tables.cost import count_opening_bits
from fedlog.experiments.tables.equal_chances import METHODS
from fedlog.experiments.tables.finished_cells import Collected, RunResult, collect
from fedlog.experiments.tables.significance import CONFIDENCE, Mean, paired_differences
from fedlog.experiments.tables.when_to_choose import CONDITIONS, ROUNDS, SHOWN_ROUNDS, WHEN_TO_CHOOSE, Condition
from fedlog.report.paper.figures import svg
from fedlog.report.parts.style import METHODS as STYLES
from fedlog.report.parts.tables import NOT_RUN, TextTable, fill_marked_place, with_error
from fedlog.wire.bits_text import describe_bits

ALONE = "local"
EARLY = 5  # the round of an early comparison
BUDGETS = (1e5, 1e6, 1e7)  # bits of all clients, both ways
LEVEL_ROUNDS = 10
PANELS = 4  # of the picture, in a row
START, END = "<!-- when to choose: written by `fedlog docs` -->", "<!-- end of when to choose -->"


@dataclass(frozen=True)
class Gain:
    """Points above training alone, paired by seed, with the interval of 95 % over seeds."""

    mean: Mean

    @property
    def reach(self) -> float | None:
        """Half the width of Student's interval; None for one seed."""
        if self.mean.error is None:
            return None
        return float(t.ppf((1 + CONFIDENCE) / 2, self.mean.seeds - 1)) * self.mean.error

    def __str__(self) -> str:
        return format(self, ".1f")

    def __format__(self, digits: str) -> str:
        """The mean with its sign and its interval, with one or two digits: `.1f` or `.2f`."""
        mean = format(self.mean.value, f"+{digits}")
        if self.reach is None:
            return mean
        low, high = (format(self.mean.value + side * self.reach, f"+{digits}") for side in (-1, 1))
        return f"{mean} [{low}, {high}]"

    @property
    def verdict(self) -> str:
        """`above` or `below` if the interval excludes 0, else `undecided`."""
        if self.reach is None or abs(self.mean.value) <= self.reach:
            return "undecided"
        return "above" if self.mean.value > 0 else "below"


def accuracy_at(runs: Sequence[RunResult], number: int) -> dict[int, float]:
    """The accuracy after that round in per cent, by seed."""
    return {run.seed: 100 * run.rounds[number - 1].accuracy_mean_over_clients for run in runs}


def find_gain(runs: Sequence[RunResult], alone: Sequence[RunResult], number: int) -> Gain | None:
    """The method's gain over training alone after that round; None without a common seed."""
    differences = paired_differences(accuracy_at(runs, number), accuracy_at(alone, number))
    return Gain(Mean.of(differences)) if differences else None


def conditions_tables(found: Collected) -> list[TextTable]:
    """Two tables: accuracy by round with the gain over training alone, and accuracy by bits."""
    return [rounds_table(found), bits_table(found)]


def rounds_table(found: Collected) -> TextTable:
    """A table of each method in each condition: its accuracy after some rounds, and its gain over training alone."""
    columns = (
        "condition, method",
        "seeds",
        *(f"round {number}" for number in SHOWN_ROUNDS),
        f"over alone, round {EARLY} [95 %]",
        f"over alone, round {ROUNDS} [95 %]",
        "verdict",
    )
    rows = []
    for condition in CONDITIONS:
        alone = found.runs[condition.row_name(ALONE)]
        for method in METHODS:
            runs = found.runs[condition.row_name(method)]
            if runs:
                rows.append((f"{condition.title}: {STYLES[method].label}", *_round_cells(method, runs, alone)))
    notes = (*_level_notes(found), *_not_run_note(found))
    return TextTable(columns, tuple(rows), "Accuracy by round in %, and points over training alone", notes)


def _round_cells(method: str, runs: Sequence[RunResult], alone: Sequence[RunResult]) -> tuple[str, ...]:
    accuracies = [
        with_error(Mean.of(list(accuracy_at(runs, number).values())), 1)
        for number in SHOWN_ROUNDS
        if number <= min(len(run.rounds) for run in runs)
    ]
    early, last = (None if method == ALONE else find_gain(runs, alone, number) for number in (EARLY, ROUNDS))
    gains = ("" if early is None else str(early), "" if last is None else str(last))
    return (str(len(runs)), *accuracies, *gains, "" if last is None else last.verdict)


def _not_run_note(found: Collected) -> tuple[str, ...]:
    """A note on conditions, or single methods of a condition, that have not been run; empty if all have."""
    missing = []
    for condition in CONDITIONS:
        absent = [method for method in METHODS if not found.runs[condition.row_name(method)]]
        if len(absent) == len(METHODS):
            missing.append(condition.title)
        elif absent:
            missing.append(f"{condition.title} ({', '.join(STYLES[method].label for method in absent)})")
    return (f"{NOT_RUN.capitalize()}: {'; '.join(missing)}.",) if missing else ()


def _level_notes(found: Collected) -> tuple[str, ...]:
    """A note on how much the accuracy of training alone still changed in the last rounds."""
    changes = []
    for condition in CONDITIONS:
        runs = found.runs[condition.row_name(ALONE)]
        if runs:
            changes.append(f"{condition.title} {_still_moving(runs):+.1f}")
    if not changes:
        return ()
    return (
        f"Training alone has levelled off: points from the {LEVEL_ROUNDS} rounds before the last {LEVEL_ROUNDS} to the "
        f"last {LEVEL_ROUNDS}: {'; '.join(changes)}.",
    )


def _still_moving(runs: Sequence[RunResult]) -> float:
    curves = np.array([[100 * record.accuracy_mean_over_clients for record in run.rounds] for run in runs])
    last, before = curves[:, -LEVEL_ROUNDS:], curves[:, -2 * LEVEL_ROUNDS : -LEVEL_ROUNDS]
    return float(last.mean() - before.mean())


def bits_table(found: Collected) -> TextTable:
    """A table of each method that sends: the bits of its whole run, and its accuracy after certain numbers of bits."""
    columns = ("condition, method", "bits of the run", *(f"{describe_bits(budget)} spent, %" for budget in BUDGETS))
    rows = []
    for condition in CONDITIONS:
        for method in METHODS:
            runs = found.runs[condition.row_name(method)]
            if runs and method != ALONE:
                total = Mean.of([float(spent_bits(run)[-1]) for run in runs]).value
                cells = (_at_budget(runs, budget) for budget in BUDGETS)
                rows.append((f"{condition.title}: {STYLES[method].label}", describe_bits(total), *cells))
    note = (
        "All clients, both directions, opening included. Blank: less than one round; the last round where all is spent."
    )
    return TextTable(columns, tuple(rows), "Accuracy by bits", (note,))


def spent_bits(run: RunResult) -> np.ndarray:
    """(rounds,): the bits sent by the end of each round, opening included."""
    each = [record.bits_up + record.bits_down for record in run.rounds]
    spent: np.ndarray = sum(count_opening_bits(run.rounds, run.summary)) + np.cumsum(each)
    return spent


def _at_budget(runs: Sequence[RunResult], budget: float) -> str:
    """The accuracy after the last round within the budget of bits; blank if some seed has no such round."""
    within = [int((spent_bits(run) <= budget).sum()) for run in runs]
    if not all(within):
        return ""
    values = [100 * run.rounds[at - 1].accuracy_mean_over_clients for run, at in zip(runs, within, strict=True)]
    return with_error(Mean.of(values), 1)


def draw_conditions(found: Collected) -> str:
    """Draw a figure as SVG, with one panel for each condition: accuracy by round, on a logarithmic axis."""
    drawn = [condition for condition in CONDITIONS if found.runs[condition.row_name(ALONE)]]
    down, across = -(-len(drawn) // PANELS), min(PANELS, len(drawn))
    figure = Figure(figsize=(max(7.0, 3.25 * across), 3.4 * down), layout="constrained")
    panels = np.atleast_1d(figure.subplots(down, across)).ravel()
    for axes in panels[len(drawn) :]:
        axes.set_axis_off()
    for axes, condition in zip(panels, drawn, strict=False):
        _draw_panel(axes, found, condition)
    panels[0].set_ylabel("test accuracy, mean over clients (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=PANELS, fontsize="small", frameon=False)
    return svg(figure)


def _draw_panel(axes: Axes, found: Collected, condition: Condition) -> None:
    for method in METHODS:
        runs = found.runs[condition.row_name(method)]
        if not runs:
            continue
        curves = np.array([[100 * record.accuracy_mean_over_clients for record in run.rounds] for run in runs])
        style = STYLES[method]
        rounds = np.arange(1, curves.shape[1] + 1)
        axes.plot(rounds, curves.mean(0), label=style.label, linewidth=1.3, **style.matplotlib_line)
    axes.set_title(condition.title, fontsize="small")
    axes.set_xscale("log")
    axes.set_xticks(SHOWN_ROUNDS, [str(number) for number in SHOWN_ROUNDS])
    axes.minorticks_off()
    axes.set_xlabel("round", fontsize="small")
    axes.grid(alpha=0.3)


def short_table(found: Collected) -> str:
    """A Markdown table with one line for each condition: each method's accuracy after an early and the last round."""
    lines = [
        f"| round {EARLY} → round {ROUNDS}, % | " + " | ".join(STYLES[method].label for method in METHODS) + " |",
        "|---|" + "---|" * len(METHODS),
    ]
    for condition in CONDITIONS:
        runs = {method: found.runs[condition.row_name(method)] for method in METHODS}
        if not all(runs.values()):
            continue
        seeds = min(len(each) for each in runs.values())
        cells = (
            " → ".join(f"{Mean.of(list(accuracy_at(each, number).values())).value:.1f}" for number in (EARLY, ROUNDS))
            for each in runs.values()
        )
        lines.append(f"| {condition.title} ({seeds} seeds) | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_when_to_choose(results: Path, page: Path) -> list[Path]:
    """Write the short table into its place in the page and return its path; do nothing if there is no such page."""
    if not page.exists():
        return []
    fill_marked_place(page, START, END, f"{short_table(collect(WHEN_TO_CHOOSE, results))}\n")
    return [page]
