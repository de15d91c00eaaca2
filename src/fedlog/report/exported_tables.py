"""Write the tables of a run, of a folder of runs or of all results to files: CSV for spreadsheets, LaTeX for papers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fedlog.experiments.compare.finished_runs import read_findings_below
from fedlog.experiments.run.execute import CONFIG
from fedlog.experiments.tables.catalog import list_experiments_with_versions
from fedlog.files.durable import write_file
from fedlog.report.compare.comparison import make_methods_table, make_sites_table
from fedlog.report.pages.run_facts import RunFacts, read_run
from fedlog.report.pages.runs_page import find_run_folders
from fedlog.report.paper.reproduction import make_experiment_pages
from fedlog.report.parts.tables import TextTable


def write_tables(tables: Iterable[tuple[str, TextTable]], out: Path) -> list[Path]:
    """Write each table as NAME.csv and NAME.tex; return the paths."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in tables:
        for suffix, text in ((".csv", table.to_csv()), (".tex", table.to_latex())):
            write_file(out / f"{name}{suffix}", text)
            written.append(out / f"{name}{suffix}")
    return written


def make_tables_of_folder(folder: Path) -> Iterator[tuple[str, TextTable]]:
    """Make the tables of a run, of a folder of runs or of all results; yield (file name without suffix, table)."""
    if any((folder / experiment.name).is_dir() for experiment in list_experiments_with_versions(folder)):
        for page in make_experiment_pages(folder):
            for number, table in enumerate(page.tables, start=1):
                yield f"{page.finished.experiment.name}-{number}", table
    elif (folder / CONFIG).exists():
        facts = read_run(folder)
        yield "rounds", _make_rounds_table(facts)
        yield "clients", _make_clients_table(facts)
    else:
        yield "runs", _make_runs_table(folder)
        compared = [findings for findings in read_findings_below(folder) if len(findings.labels) > 1]
        for number, findings in enumerate(compared, start=1):
            yield f"comparison-{number}-methods", make_methods_table(findings)
            yield f"comparison-{number}-sites", make_sites_table(findings)


def _make_rounds_table(facts: RunFacts) -> TextTable:
    """Make a table of the accuracy, bits and seconds of each round."""
    rows = tuple(
        (
            f"{line.round}",
            f"{100 * line.accuracy_mean_over_clients:.2f}",
            f"{line.bits_up}",
            f"{line.bits_down}",
            f"{line.seconds:.3f}",
        )
        for line in facts.rounds
    )
    title = f"{facts.spec.method} on {facts.spec.data}, seed {facts.spec.seed}"
    return TextTable(("round", "accuracy, %", "bits up", "bits down", "seconds"), rows, title)


def _make_clients_table(facts: RunFacts) -> TextTable:
    """Make a table of each client's accuracy, the lowest first."""
    rows = tuple(
        (
            client.name,
            _format_percent_number(client.accuracy),
            _format_percent_number(client.alone),
            f"{client.test_records}",
        )
        for client in facts.clients
    )
    return TextTable(("client", "accuracy, %", "alone, %", "test records"), rows, "Each client, after the last round")


def _make_runs_table(folder: Path) -> TextTable:
    """Make a table of the accuracy and bits of each run below the folder, finished or not."""
    rows = []
    for path in find_run_folders(folder):
        facts = read_run(path)
        rows.append(
            (
                path.relative_to(folder).as_posix(),
                facts.spec.method,
                facts.spec.data,
                f"{facts.spec.seed}",
                f"{len(facts.rounds)}",
                _format_percent_number(facts.accuracy),
                f"{facts.bits}",
            )
        )
    return TextTable(("run", "method", "data", "seed", "rounds", "accuracy, %", "bits"), tuple(rows), "Runs")


def _format_percent_number(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"
