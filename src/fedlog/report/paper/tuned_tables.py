"""Tables of methods with their selected settings and with the paper's, after the same number of rounds."""

from __future__ import annotations

from fedlog.experiments.tables.cells import Row
from fedlog.experiments.tables.finished_cells import Collected, collect
from fedlog.experiments.tables.paper import make_table
from fedlog.experiments.tables.significance import Mean, paired_differences
from fedlog.report.paper.conditions import Gain, accuracy_at
from fedlog.report.paper.method_tables import comparison_table
from fedlog.report.paper.other_tables import settings_text
from fedlog.report.parts.tables import TextTable, not_run_note, with_error


def tuned_tables(found: Collected) -> list[TextTable]:
    """Two tables: the gain over the paper's settings, and the methods against each other."""
    at_papers = collect(make_table(found.experiment.data[0]), found.folder.parent)
    return [gain_table(found, at_papers), comparison_table(found)]


def gain_table(found: Collected, at_papers: Collected) -> TextTable:
    """A table of each method with its selected setting and with the paper's, and the difference over common seeds."""
    rounds = found.experiment.rows[0].spec.rounds
    columns = (
        "method",
        "selected setting",
        "seeds",
        f"round {rounds}, %",
        f"the paper's settings, round {rounds}, % (seeds)",
        "gained, points [95 %]",
        "verdict",
    )
    rows = tuple(_gain_row(row, found, at_papers) for row in found.experiment.rows if found.runs[row.name])
    return TextTable(columns, rows, "Accuracy, mean over clients", not_run_note(found))


def _gain_row(row: Row, found: Collected, at_papers: Collected) -> tuple[str, ...]:
    rounds = row.spec.rounds or 0
    ours = accuracy_at(found.runs[row.name], rounds)
    papers = accuracy_at(at_papers.runs[row.name], rounds)
    differences = paired_differences(ours, papers)
    gain = Gain(Mean.of(differences)) if differences else None
    return (
        row.label,
        settings_text(row.spec),
        str(len(ours)),
        with_error(Mean.of(list(ours.values()))),
        f"{with_error(Mean.of(list(papers.values())))} ({len(papers)})" if papers else "",
        "" if gain is None else f"{gain:.2f}",
        "" if gain is None else gain.verdict,
    )
