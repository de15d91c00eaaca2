"""Tables of methods with their selected settings and with the paper's, after the same number of rounds."""

from __future__ import annotations

from fedlog.experiments.tables.cells import Row
from fedlog.experiments.tables.finished_cells import Collected, collect
from fedlog.experiments.tables.paper import make_table
from fedlog.experiments.tables.significance import Mean, paired_differences
from fedlog.report.paper.grid_tables import describe_settings
from fedlog.report.paper.method_tables import comparison_table
from fedlog.report.paper.when_to_choose import accuracy_after_round, judge_gain
from fedlog.report.parts.tables import TextTable, describe_interval, format_mean, note_missing


def tuned_tables(found: Collected) -> list[TextTable]:
    """Two tables: the gain over the paper's settings, and the methods against each other."""
    at_papers = collect(make_table(found.experiment.data[0]), found.folder.parent)
    return [table for table in (gain_table(found, at_papers), comparison_table(found)) if table.rows]


def gain_table(found: Collected, at_papers: Collected) -> TextTable:
    """A table of each method with its selected setting and with the paper's, and the difference over common seeds."""
    rows = [_gain_row(row, found, at_papers) for row in found.experiment.rows if found.runs[row.name]]
    return TextTable.of(rows, "Accuracy, mean over clients", note_missing(found))


def _gain_row(row: Row, found: Collected, at_papers: Collected) -> dict[str, str]:
    rounds = row.spec.rounds or 0
    ours = accuracy_after_round(found.runs[row.name], rounds)
    papers = accuracy_after_round(at_papers.runs[row.name], rounds)
    differences = paired_differences(ours, papers)
    gain = Mean.of(differences) if differences else None
    by_papers = f"{format_mean(papers.values())} ({len(papers)})" if papers else ""
    return {
        "method": row.label,
        "selected setting": describe_settings(row.spec),
        "seeds": str(len(ours)),
        f"round {rounds}, %": format_mean(ours.values()),
        f"the paper's settings, round {rounds}, % (seeds)": by_papers,
        "gained, points [95 %]": "" if gain is None else describe_interval(gain.value, *gain.interval),
        "verdict": "" if gain is None else judge_gain(gain),
    }
