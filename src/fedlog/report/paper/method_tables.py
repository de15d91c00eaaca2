"""Make tables that compare methods with the paper's results, with each other and with training alone."""

from __future__ import annotations

from fedlog.experiments.tables.cells import ExperimentKind, PrintedResults, TableRow
from fedlog.experiments.tables.finished_cells import FinishedRuns, RunResult, collect_runs
from fedlog.experiments.tables.paper import PAPER_NAMES, make_table_1
from fedlog.experiments.tables.significance import (
    Agreement,
    Estimate,
    Mean,
    compute_mean_difference,
    estimate_difference_from_printed_mean,
    judge_agreement,
)
from fedlog.report.paper import comparisons
from fedlog.report.paper.cost_table import make_cost_table
from fedlog.report.paper.grid_tables import describe_changed_settings
from fedlog.report.parts.tables import (
    NOT_RUN,
    TextTable,
    format_difference,
    format_mean_of_values,
    format_with_interval,
    list_notes_on_missing_rows,
)
from fedlog.settings.training import HeldOutRecords

LAST_ROUNDS = 10
VERDICTS_IN_WORDS = {
    Agreement.AGREES: "agree",
    Agreement.ABOVE: "are above the print",
    Agreement.BELOW: "below",
    Agreement.UNDECIDED: "undecided",
}
BEST_ROUND = "best round, % (chosen on test data)"


def make_method_tables(finished: FinishedRuns) -> list[TextTable]:
    """Make the tables of an experiment that compares methods."""
    if any(row.spec.judge is HeldOutRecords.BOTH for row in finished.experiment.rows):
        return [table for table in (make_chosen_rounds_table(finished),) if table.rows]
    tables = [make_accuracy_table(finished), make_comparison_table(finished)]
    if finished.experiment.kind is ExperimentKind.TABLE and finished.experiment.threshold is not None:
        tables.append(make_cost_table(finished, finished.experiment.threshold))
    return [table for table in tables if table.rows]


def make_accuracy_table(finished: FinishedRuns) -> TextTable:
    """Make a table of each method's accuracy in our runs and in the paper, and whether the two agree."""
    rows = [_make_accuracy_row(row, finished) for row in finished.experiment.rows if finished.runs[row.name]]
    return TextTable.from_rows(
        rows, "Accuracy, mean over clients" if rows else "", list_notes_on_missing_rows(finished)
    )


def make_chosen_rounds_table(finished: FinishedRuns) -> TextTable:
    """Make a table of accuracies in the final round, in the best round, and in a round that each client chooses.

    A client chooses the round with its highest accuracy on its validation records.
    """
    rows = []
    for row in finished.experiment.rows:
        runs = [run for run in finished.runs[row.name] if run.summary.accuracy_at_chosen_rounds is not None]
        if not runs:
            continue
        final = [100 * run.summary.accuracy_mean_over_clients for run in runs]
        chosen = [100 * (run.summary.accuracy_at_chosen_rounds or 0.0) for run in runs]
        gained = [at_chosen - at_end for at_chosen, at_end in zip(chosen, final, strict=True)]
        rows.append(
            {
                "method": row.label,
                "seeds": str(len(runs)),
                "final round, %": format_mean_of_values(final),
                "round chosen by each client on its validation records, %": format_mean_of_values(chosen),
                "chosen minus final, points": format_difference(Mean.from_values(gained)),
                BEST_ROUND: format_mean_of_values(100 * run.summary.best_accuracy for run in runs),
            }
        )
    return TextTable.from_rows(rows, "A round that can be had in practice", list_notes_on_missing_rows(finished))


def _make_accuracy_row(row: TableRow, finished: FinishedRuns) -> dict[str, str]:
    """Make the table row of one method: its accuracy in several rounds, the paper's, and whether the two agree."""
    runs = finished.runs[row.name]
    closed = [run.summary.accuracy_after_closing for run in runs]
    difference = estimate_difference_from_paper(row, finished)
    gap = "" if difference is None else format_with_interval(difference.value, difference.low, difference.high)
    return {
        "method": row.label,
        "seeds": str(len(runs)),
        "final round, %": format_mean_of_values(finished.find_final_accuracies(row.name).values()),
        f"last {LAST_ROUNDS} rounds, %": _format_last_rounds(runs),
        BEST_ROUND: format_mean_of_values(100 * run.summary.best_accuracy for run in runs),
        "after closing phase, %": format_mean_of_values(100 * accuracy for accuracy in closed if accuracy is not None),
        "paper, %": format_accuracy_of_paper(row.printed),
        "final round minus paper [95 %]": gap,
        "verdict": "" if difference is None else judge_agreement(difference).value,
    }


def estimate_difference_from_paper(row: TableRow, finished: FinishedRuns) -> Estimate | None:
    """Estimate our final accuracy minus the paper's, with an interval; None if one of the two is missing."""
    final = list(finished.find_final_accuracies(row.name).values())
    if row.printed is None or not final:
        return None
    return estimate_difference_from_printed_mean(
        Mean.from_values(final), row.printed.accuracy, row.printed.accuracy_error
    )


def _format_last_rounds(runs: list[RunResult]) -> str:
    """Format the mean accuracy over the last LAST_ROUNDS rounds of the runs; blank if a run has fewer rounds."""
    if min(len(run.rounds) for run in runs) < LAST_ROUNDS:
        return ""
    return format_mean_of_values(
        100 * sum(record.accuracy_mean_over_clients for record in run.rounds[-LAST_ROUNDS:]) / LAST_ROUNDS
        for run in runs
    )


def make_comparison_table(finished: FinishedRuns) -> TextTable:
    """Make a table that tests each method's final round against the reference row; empty if there is no reference."""
    experiment, against = finished.experiment, comparisons.find_reference_label(finished.experiment)
    final = {row.name: finished.find_final_accuracies(row.name) for row in experiment.rows if finished.runs[row.name]}
    tests = comparisons.compare_rows(experiment, final)
    if not tests:
        return TextTable.from_rows(())
    rows = []
    for row in experiment.rows:
        if row.name in final:
            test = tests.get(row.name)
            minus_reference, minus_alone = (
                ""
                if row.name == other
                else format_difference(compute_mean_difference(final[row.name], final.get(other, {})))
                for other in (experiment.reference or "", "local")
            )
            rows.append(
                {
                    "method": row.label + comparisons.format_arrow(test),
                    f"minus {against}, points": minus_reference,
                    "Hodges-Lehmann [95 %]": "" if test is None else comparisons.format_paired_difference(test.shift),
                    "p": comparisons.format_test(test),
                    "p, Holm": comparisons.format_holm_test(test),
                    "minus training alone, points": minus_alone,
                }
            )
    title = f"The final round against {against} and against training alone, paired by seed"
    return TextTable.from_rows(rows, title, (comparisons.describe_correction(experiment, tests),))


def format_accuracy_of_paper(printed: PrintedResults | None) -> str:
    """Format the paper's accuracy, its standard error and its arrow for significance; empty if the paper has none."""
    if printed is None:
        return ""
    return f"{printed.accuracy:.2f} ± {printed.accuracy_error:.2f} {printed.accuracy_arrow}".rstrip()


def make_tuned_tables(finished: FinishedRuns) -> list[TextTable]:
    """Make two tables of tuned methods: their gains over the paper's settings, and a comparison with each other."""
    untuned = collect_runs(make_table_1(finished.experiment.data[0]), finished.folder.parent)
    gains = [_make_gain_row(row, finished, untuned) for row in finished.experiment.rows if finished.runs[row.name]]
    tables = (
        TextTable.from_rows(gains, "Accuracy, mean over clients", list_notes_on_missing_rows(finished)),
        make_comparison_table(finished),
    )
    return [table for table in tables if table.rows]


def _make_gain_row(row: TableRow, finished: FinishedRuns, untuned: FinishedRuns) -> dict[str, str]:
    """Make the table row of one method: its accuracy with tuned and with the paper's settings, and the difference."""
    rounds = row.spec.rounds or 0
    ours, papers = (each.find_accuracies_after_round(row.name, rounds) for each in (finished, untuned))
    gain = compute_mean_difference(ours, papers)
    return {
        "method": row.label,
        "selected setting": describe_changed_settings(row.spec),
        "seeds": str(len(ours)),
        f"round {rounds}, %": format_mean_of_values(ours.values()),
        f"the paper's settings, round {rounds}, % (seeds)": f"{format_mean_of_values(papers.values())} ({len(papers)})"
        if papers
        else "",
        "gained, points [95 %]": comparisons.format_gain(gain),
        "verdict": comparisons.judge_gain(gain),
    }


def describe_agreement(finished: list[FinishedRuns]) -> str:
    """Say how many accuracies the paper prints, how many of them we ran, and how many of ours agree with the paper."""
    printed = [
        (each, row)
        for each in _select_experiments_with_printed_accuracies(finished)
        for row in each.experiment.rows
        if row.printed
    ]
    found = [estimate_difference_from_paper(row, each) for each, row in printed]
    ran = [judge_agreement(difference) for difference in found if difference is not None]
    counts = ", ".join(f"{ran.count(verdict)} {words}" for verdict, words in VERDICTS_IN_WORDS.items())
    alone = sum(len(each.runs[row.name]) == 1 for each, row in printed)
    return (
        f"The paper prints {len(printed)} accuracies of methods. We ran {len(ran)} of them: {counts} ({alone} with a "
        f"single seed); {len(printed) - len(ran)} were not run."
    )


def _select_experiments_with_printed_accuracies(finished: list[FinishedRuns]) -> list[FinishedRuns]:
    """Return the experiments of the paper for which it prints accuracies."""
    return [
        each
        for each in finished
        if each.experiment.name in PAPER_NAMES and any(row.printed for row in each.experiment.rows)
    ]


def make_overview_table(finished: list[FinishedRuns]) -> TextTable:
    """Make a table of every row that the paper prints: its accuracy and ours, our seeds, and whether they agree."""
    printed = _select_experiments_with_printed_accuracies(finished)
    names = list(dict.fromkeys(row.name for each in printed for row in each.experiment.rows if row.printed))
    labels = {row.name: row.label for each in printed for row in each.experiment.rows}
    columns = ("method", *(each.experiment.short_title for each in printed))
    rows = tuple((labels[name], *(_format_overview_cell(each, name) for each in printed)) for name in names)
    return TextTable(columns, rows, "Accuracy in %: the paper's → ours (seeds), verdict")


def _format_overview_cell(finished: FinishedRuns, name: str) -> str:
    """Format the paper's accuracy, ours, our seeds and the verdict, as `98.15 → 98.02 (10), agrees`.

    Blank if the paper does not have this row.
    """
    row = next((row for row in finished.experiment.rows if row.name == name), None)
    if row is None or row.printed is None:
        return ""
    difference = estimate_difference_from_paper(row, finished)
    if difference is None:
        return f"{row.printed.accuracy:.2f} → {NOT_RUN}"
    mean = Mean.from_values(list(finished.find_final_accuracies(name).values()))
    return f"{row.printed.accuracy:.2f} → {mean.value:.2f} ({mean.seeds}), {judge_agreement(difference).value}"
