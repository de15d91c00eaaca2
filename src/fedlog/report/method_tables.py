"""Methods against each other and against the paper: accuracy, the bars, and which tables an experiment has."""

from __future__ import annotations

from collections.abc import Mapping

from fedlog.experiments.tables.cells import Experiment, Printed, Row, Shape
from fedlog.experiments.tables.finished_cells import Collected, RunResult
from fedlog.experiments.tables.significance import BySeed, Comparison, Mean, paired_differences
from fedlog.report.comparisons import (
    arrow_text,
    comparisons,
    holm_text,
    interval_text,
    notes_on_tests,
    p_text,
    reference_label,
)
from fedlog.report.cost_table import cost_table
from fedlog.report.tables import NOT_RUN, Table, difference_with_error, with_error

BARRED = ("fedlog-c", "fedlog")  # the methods that are measured against the paper's own figures


def tables_of(found: Collected) -> list[Table]:
    """The tables of an experiment that compares methods."""
    tables = [accuracy_table(found)]
    if found.experiment.shape is Shape.TABLE:
        tables.append(cost_table(found))
    bars = bar_table(found)
    return [*tables, bars] if bars.rows else tables


def accuracy_table(found: Collected) -> Table:
    """The final round beside the paper's figure, tested against the reference; the best round and the closing apart."""
    experiment = found.experiment
    final = {row.name: found.final(row.name) for row in experiment.rows if found.runs[row.name]}
    tests = comparisons(experiment, final)
    columns = (
        "method",
        "seeds",
        "final round, %",
        "paper, %",
        f"minus {reference_label(experiment)}, points",
        "Hodges-Lehmann [95 %]",
        "p",
        "p, Holm",
        "minus local only, points",
        "best round, % (chosen on test data)",
        "after closing phase, %",
    )
    reference = final.get(experiment.reference or "", {})
    rows = tuple(_accuracy_row(row, found.runs[row.name], final, reference, tests) for row in experiment.rows)
    return Table(columns, rows, "Accuracy, mean over clients", _notes(experiment, tests))


def _accuracy_row(
    row: Row,
    runs: list[RunResult],
    final: Mapping[str, BySeed],
    reference: BySeed,
    tests: Mapping[str, Comparison],
) -> tuple[str, ...]:
    printed = _printed_accuracy(row.printed)
    if not runs:
        return (row.label, "0", NOT_RUN, printed, *[""] * 7)
    test = tests.get(row.name)
    best = Mean.of([100 * run.summary.best_accuracy for run in runs])
    closed = [run.summary.accuracy_after_closing for run in runs]
    after = [100 * accuracy for accuracy in closed if accuracy is not None]
    return (
        row.label,
        str(len(runs)),
        with_error(Mean.of(list(final[row.name].values()))) + arrow_text(test),
        printed,
        "" if test is None else _minus(final[row.name], reference),
        "" if test is None else interval_text(test.shift),
        p_text(test),
        holm_text(test),
        "" if row.name == "local" else _minus(final[row.name], final.get("local", {})),
        with_error(best),
        with_error(Mean.of(after)) if after else "",
    )


def _minus(row: BySeed, other: BySeed) -> str:
    """The mean difference over common seeds with its standard error; blank without one."""
    differences = paired_differences(row, other)
    if not differences:
        return ""
    return difference_with_error(Mean.of(differences))


def _notes(experiment: Experiment, tests: Mapping[str, Comparison]) -> tuple[str, ...]:
    if not tests:
        return notes_on_tests(experiment, tests)
    return (
        "minus: the mean difference over common seeds with its standard error. Hodges-Lehmann: the median of the "
        f"pairwise means of the differences to {reference_label(experiment)}, in points, with its exact interval of at "
        "least 95 %, from 6 common seeds on.",
        *notes_on_tests(experiment, tests),
    )


def bar_table(found: Collected) -> Table:
    """Whether the mean plus two standard errors reaches the paper's figure; no row without runs or a printed value."""
    rows = []
    for name in BARRED:
        row = next((row for row in found.experiment.rows if row.name == name), None)
        if row is None or row.printed is None or not found.runs[name]:
            continue
        mean = Mean.of(list(found.final(name).values()))
        reach = mean.value + 2 * (mean.error or 0.0)
        verdict = "reached" if reach >= row.printed.accuracy else f"missed by {row.printed.accuracy - reach:.2f}"
        if mean.value >= row.printed.accuracy:
            verdict = "reached by the mean alone"  # which a large spread does nothing for
        how = "mean + 2 standard errors" if mean.error is not None else "mean alone: one seed has no error"
        rows.append((row.label, str(mean.seeds), f"{reach:.2f} ({how})", f"{row.printed.accuracy:.2f}", verdict))
    return Table(("method", "seeds", "ours, %", "paper, %", "verdict"), tuple(rows), "Bars")


def _printed_accuracy(printed: Printed | None) -> str:
    if printed is None:
        return ""
    return f"{printed.accuracy:.2f} ± {printed.accuracy_error:.2f} {printed.accuracy_arrow}".rstrip()
