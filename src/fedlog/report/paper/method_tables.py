"""Tables that compare methods with the paper's figures, with each other and with training alone."""

from __future__ import annotations

from collections.abc import Mapping

from fedlog.experiments.tables.cells import PrintedFigures, Row, Shape
from fedlog.experiments.tables.finished_cells import Collected, RunResult
from fedlog.experiments.tables.paper import PAPER
from fedlog.experiments.tables.significance import (
    BySeed,
    Mean,
    PrintedDifference,
    SignificanceTest,
    difference_from_printed,
    paired_differences,
)
from fedlog.report.paper.comparisons import (
    arrow_text,
    comparisons,
    holm_note,
    holm_text,
    interval_text,
    p_text,
    reference_label,
)
from fedlog.report.paper.cost_table import cost_table
from fedlog.report.parts.tables import NOT_RUN, TextTable, difference_with_error, not_run_note, with_error
from fedlog.settings.training import Judge

PRINTED_SEEDS = 10  # of every row that the paper prints
LAST_ROUNDS = 10
PAPER_NAMES = {experiment.name for experiment in PAPER}


def tables_of(found: Collected) -> list[TextTable]:
    """The tables of an experiment that compares methods."""
    if any(row.spec.judge is Judge.BOTH for row in found.experiment.rows):
        return [table for table in (chosen_rounds_table(found),) if table.rows]
    tables = [accuracy_table(found), comparison_table(found)]
    if found.experiment.shape is Shape.TABLE and found.experiment.threshold is not None:
        tables.append(cost_table(found, found.experiment.threshold))
    return [table for table in tables if table.rows]


def accuracy_table(found: Collected) -> TextTable:
    """A table of each method's accuracy, the paper's, and the verdict from the interval of their difference."""
    columns = (
        "method",
        "seeds",
        "final round, %",
        f"last {LAST_ROUNDS} rounds, %",
        "best round, % (chosen on test data)",
        "after closing phase, %",
        "paper, %",
        "final round minus paper [95 %]",
        "verdict",
    )
    ran = [row for row in found.experiment.rows if found.runs[row.name]]
    rows = tuple(_accuracy_row(row, found) for row in ran)
    title = "Accuracy, mean over clients" if rows else ""
    return TextTable(columns, rows, title, not_run_note(found))


def chosen_rounds_table(found: Collected) -> TextTable:
    """A table of accuracies in the final round, in the best one, and in the round that each client chooses."""
    columns = (
        "method",
        "seeds",
        "final round, %",
        "round chosen by each client on its validation records, %",
        "chosen minus final, points",
        "best round, % (chosen on test data)",
    )
    rows = []
    for row in found.experiment.rows:
        runs = [run for run in found.runs[row.name] if run.summary.accuracy_at_chosen_rounds is not None]
        if not runs:
            continue
        final = [100 * run.summary.accuracy_mean_over_clients for run in runs]
        chosen = [100 * (run.summary.accuracy_at_chosen_rounds or 0.0) for run in runs]
        best = [100 * run.summary.best_accuracy for run in runs]
        gained = [at_chosen - at_end for at_chosen, at_end in zip(chosen, final, strict=True)]
        rows.append(
            (
                row.label,
                str(len(runs)),
                with_error(Mean.of(final)),
                with_error(Mean.of(chosen)),
                difference_with_error(Mean.of(gained)),
                with_error(Mean.of(best)),
            )
        )
    return TextTable(columns, tuple(rows), "A round that can be had in practice", not_run_note(found))


def _accuracy_row(row: Row, found: Collected) -> tuple[str, ...]:
    runs = found.runs[row.name]
    closed = [run.summary.accuracy_after_closing for run in runs]
    after = [100 * accuracy for accuracy in closed if accuracy is not None]
    difference = show_printed_difference(row, found)
    return (
        row.label,
        str(len(runs)),
        with_error(Mean.of(list(found.final(row.name).values()))),
        _last_rounds(runs),
        with_error(Mean.of([100 * run.summary.best_accuracy for run in runs])),
        with_error(Mean.of(after)) if after else "",
        show_printed_accuracy(row.printed),
        "" if difference is None else _difference_text(difference),
        "" if difference is None else difference.verdict.value,
    )


def show_printed_difference(row: Row, found: Collected) -> PrintedDifference | None:
    """The accuracy of the row's final round minus the paper's; None if one of them is missing."""
    final = list(found.final(row.name).values())
    if row.printed is None or not final:
        return None
    return difference_from_printed(Mean.of(final), row.printed.accuracy, row.printed.accuracy_error, PRINTED_SEEDS)


def _difference_text(found: PrintedDifference) -> str:
    if found.low is None or found.high is None:
        return f"{found.value:+.2f}"
    return f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _last_rounds(runs: list[RunResult]) -> str:
    """The mean accuracy of each run's last rounds; blank for shorter runs."""
    if min(len(run.rounds) for run in runs) < LAST_ROUNDS:
        return ""
    means = [
        100 * sum(record.accuracy_mean_over_clients for record in run.rounds[-LAST_ROUNDS:]) / LAST_ROUNDS
        for run in runs
    ]
    return with_error(Mean.of(means))


def comparison_table(found: Collected) -> TextTable:
    """A table of the final round of each method against the reference and training alone; empty without a reference."""
    experiment = found.experiment
    final = {row.name: found.final(row.name) for row in experiment.rows if found.runs[row.name]}
    tests = comparisons(experiment, final)
    columns = (
        "method",
        f"minus {reference_label(experiment)}, points",
        "Hodges-Lehmann [95 %]",
        "p",
        "p, Holm",
        "minus training alone, points",
    )
    if not tests:
        return TextTable(columns, ())
    reference = final[experiment.reference or ""]
    rows = tuple(
        _comparison_row(row, final, reference, tests.get(row.name)) for row in experiment.rows if row.name in final
    )
    title = f"The final round against {reference_label(experiment)} and against training alone, paired by seed"
    return TextTable(columns, rows, title, (holm_note(experiment, tests),))


def _comparison_row(
    row: Row, final: Mapping[str, BySeed], reference: BySeed, test: SignificanceTest | None
) -> tuple[str, ...]:
    return (
        row.label + arrow_text(test),
        "" if test is None else _mean_difference(final[row.name], reference),
        "" if test is None else interval_text(test.shift),
        p_text(test),
        holm_text(test),
        "" if row.name == "local" else _mean_difference(final[row.name], final.get("local", {})),
    )


def _mean_difference(row: BySeed, other: BySeed) -> str:
    """The mean difference over common seeds with its standard error; blank without one."""
    differences = paired_differences(row, other)
    return difference_with_error(Mean.of(differences)) if differences else ""


def show_printed_accuracy(printed: PrintedFigures | None) -> str:
    """The paper's accuracy with its standard error and its arrow."""
    if printed is None:
        return ""
    return f"{printed.accuracy:.2f} ± {printed.accuracy_error:.2f} {printed.accuracy_arrow}".rstrip()


def overview_table(found: list[Collected]) -> TextTable:
    """A table of every row that the paper prints: its figure, ours, the seeds and the verdict, by data set."""
    printed = [
        each
        for each in found
        if each.experiment.name in PAPER_NAMES and any(row.printed for row in each.experiment.rows)
    ]
    names = list(dict.fromkeys(row.name for each in printed for row in each.experiment.rows if row.printed))
    labels = {row.name: row.label for each in printed for row in each.experiment.rows}
    columns = ("method", *(each.experiment.title.removeprefix("Table 1, ") for each in printed))
    rows = tuple((labels[name], *(_overview_cell(each, name) for each in printed)) for name in names)
    return TextTable(columns, rows, "The paper's figure → ours (seeds), verdict")


def _overview_cell(found: Collected, name: str) -> str:
    row = next((row for row in found.experiment.rows if row.name == name), None)
    if row is None or row.printed is None:
        return ""
    difference = show_printed_difference(row, found)
    if difference is None:
        return f"{row.printed.accuracy:.2f} → {NOT_RUN}"
    mean = Mean.of(list(found.final(name).values()))
    return f"{row.printed.accuracy:.2f} → {mean.value:.2f} ({mean.seeds}), {difference.verdict.value}"
