"""Write the pages of the reproduction from the records: an overview, and a page for each experiment.

Numbers come from the records. Comments by people are in `discussion.md`, in the folder of an experiment or, about all
experiments, in the results folder; they are copied into the pages.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from fedlog.experiments.tables.catalog import list_experiments_with_versions
from fedlog.experiments.tables.cells import CellState, ExperimentKind
from fedlog.experiments.tables.finished_cells import FinishedRuns, collect_runs, read_verification_results
from fedlog.experiments.tables.privacy_figure import PRIVACY_FIGURE
from fedlog.files.durable import write_file
from fedlog.report.paper import figures
from fedlog.report.paper.comparisons import HOW_TO_READ
from fedlog.report.paper.cost_table import make_cost_overview
from fedlog.report.paper.grid_tables import make_grid_table, make_synthetic_grid_table, make_synthetic_table
from fedlog.report.paper.method_tables import (
    describe_agreement,
    make_method_tables,
    make_overview_table,
    make_tuned_tables,
)
from fedlog.report.paper.privacy_tables import draw_privacy_figure, make_privacy_tables, make_short_guarantee_table
from fedlog.report.paper.when_to_choose import draw_conditions_figure, make_conditions_tables
from fedlog.report.parts.render import render_page
from fedlog.report.parts.tables import TextTable, format_markdown_list, replace_marked_text

_MARKDOWN = MarkdownIt("commonmark", {"html": False})
DISCUSSION, FIGURE = "discussion.md", "figure.svg"
INDEX, PAGES = "reproduction.md", "reproduction"
GUARANTEES, GUARANTEES_END = "<!-- guarantees: written by `fedlog docs` -->", "<!-- end of guarantees -->"
TITLE = "The paper, reproduced"
# A number of at least 1 with more than one decimal. Smaller numbers are the scales of letters, and stay as they are.
LONG_COORDINATE = re.compile(r"(?<![\d.])([1-9]\d*\.\d)\d+")

HOW_TO_RUN = (
    "`fedlog reproduce NAME` runs an experiment, and goes on where it was stopped. `--methods` and `--seeds` choose "
    "among its cells; `--jobs` runs several side by side.",
    "`--executor dask://host:port` runs the cells on a Dask cluster that sees the same folder "
    "(`pip install 'fedlog[dask]'`).",
    "`fedlog reproduce NAME --verify` runs the first rounds of finished cells again, and names those that differ.",
    "`fedlog docs` makes these pages from the records under `results/`; no number in a table or figure is typed.",
)


@dataclass(frozen=True)
class ExperimentPage:
    """The content of the page of one experiment: its tables, its figure and its discussion."""

    finished: FinishedRuns
    tables: tuple[TextTable, ...]
    figure: str | None
    discussion: str | None

    @property
    def status(self) -> str:
        """A phrase on how many cells (runs) of the experiment are done, and how many of them passed `--verify`."""
        states = self.finished.states
        parts = [f"{states[CellState.DONE]} of {sum(states.values())} cells run"]
        if states[CellState.BEGUN]:
            parts.append(f"{states[CellState.BEGUN]} begun")
        if states[CellState.OTHER]:
            folders = ", ".join(folder.relative_to(self.finished.folder).as_posix() for folder in self.finished.others)
            parts.append(f"{states[CellState.OTHER]} left out: made with other settings ({folders})")
        tried = read_verification_results(self.finished.folder)
        if tried:
            differing = [name for name, each in tried.items() if each.first_difference is not None]
            named = f", not {', '.join(differing)}" if differing else ""
            same = len(tried) - len(differing)
            parts.append(f"{same} of {len(tried)} cells run again repeat their first rounds{named}")
        return ", ".join(parts)

    @property
    def encoded_figure(self) -> str:
        """The SVG figure in base64, to be embedded in an HTML page, with coordinates to a tenth of a point."""
        shorter = LONG_COORDINATE.sub(r"\1", self.figure or "")
        return base64.b64encode(shorter.encode()).decode()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The remarks of the experiment that its tables do not already have as notes."""
        noted = {note for table in self.tables for note in table.notes}
        return tuple(remark for remark in self.finished.experiment.remarks if remark not in noted)


def make_experiment_pages(results: Path) -> list[ExperimentPage]:
    """Make a page for every experiment, run or not, and for its shorter or longer versions that `results` has."""
    return [
        _make_experiment_page(collect_runs(experiment, results))
        for experiment in list_experiments_with_versions(results)
    ]


def _make_experiment_page(finished: FinishedRuns) -> ExperimentPage:
    """Make the page of one experiment, with the tables and the figure that belong to its kind."""
    discussion = _read_discussion(finished.folder / DISCUSSION)
    if finished.is_empty:
        return ExperimentPage(finished, (), None, discussion)
    kind, figure = finished.experiment.kind, None
    if kind is ExperimentKind.GRID:
        tables = [make_grid_table(finished)]
    elif kind is ExperimentKind.SYNTHETIC and len(finished.experiment.rows) == 2:
        tables, figure = [make_synthetic_table(finished)], figures.draw_synthetic_panels(finished)
    elif kind is ExperimentKind.SYNTHETIC:
        tables = [make_synthetic_grid_table(finished)]
    elif kind is ExperimentKind.CONDITIONS:
        tables, figure = make_conditions_tables(finished), draw_conditions_figure(finished)
    elif kind is ExperimentKind.PRIVACY:
        tables, figure = make_privacy_tables(finished), draw_privacy_figure(finished)
    else:
        tables = make_tuned_tables(finished) if kind is ExperimentKind.TUNED else make_method_tables(finished)
        figure = figures.draw_method_curves(finished)
    return ExperimentPage(finished, tuple(tables), figure, discussion)


def _read_discussion(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None


def write_reproduction_pages(results: Path, docs: Path, pages: list[ExperimentPage] | None = None) -> list[Path]:
    """Write the overview, and for each experiment its page and, next to its records, its figure; return the paths.

    If `pages` are given, the records are not read again.
    """
    pages = make_experiment_pages(results) if pages is None else pages
    folder = docs / PAGES
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for page in pages:
        path = folder / f"{page.finished.experiment.name}.md"
        if page.figure is not None:
            write_file(page.finished.folder / FIGURE, page.figure)
            written.append(page.finished.folder / FIGURE)
        write_file(path, _format_experiment_page(page, folder))
        written.append(path)
    for path in set(folder.glob("*.md")) - set(written):
        path.unlink()  # of an experiment that is no more
    index = docs / INDEX
    write_file(index, _format_overview_page(pages, results))
    guarantees = make_short_guarantee_table(collect_runs(PRIVACY_FIGURE, results)).to_markdown()
    return [index, *replace_marked_text(docs / "privacy.md", GUARANTEES, GUARANTEES_END, guarantees), *written]


def _format_experiment_page(page: ExperimentPage, folder: Path) -> str:
    """Return the page of one experiment as Markdown; `folder` is where the page is written."""
    experiment = page.finished.experiment
    parts = [f"# {experiment.title}\n", f"`{experiment.command}`: {page.status}. [Overview](../{INDEX}).\n"]
    parts += [format_markdown_list(page.remarks)] if page.remarks else []
    parts += [table.to_markdown() for table in page.tables]
    if page.figure is not None:
        path = os.path.relpath((page.finished.folder / FIGURE).resolve(), folder.resolve())
        parts.append(f"![{experiment.title}]({Path(path).as_posix()})\n")
    if page.discussion is not None:
        parts.append(page.discussion + "\n")
    return "\n".join(parts)


def _format_overview_page(pages: list[ExperimentPage], results: Path) -> str:
    """Return the overview page of the reproduction as Markdown: a table, a discussion, and links to the experiments."""
    overall, finished = _read_discussion(results / DISCUSSION), [page.finished for page in pages]
    named = [(page.finished.experiment, page.status) for page in pages]
    links = [f"- [{experiment.title}]({PAGES}/{experiment.name}.md): {status}" for experiment, status in named]
    parts = [
        f"# {TITLE}\n",
        f"{describe_agreement(finished)} [What these words mean](#how-to-read-the-tables).\n",
        make_overview_table(finished).to_markdown(),
        *([overall + "\n"] if overall else []),
        "## What it costs\n",
        make_cost_overview(finished).to_markdown(),
        "## Experiments\n",
        "\n".join(links) + "\n",
        "## How to read the tables\n",
        format_markdown_list(HOW_TO_READ),
        "## How to run them\n",
        format_markdown_list(HOW_TO_RUN),
    ]
    return "\n".join(parts)


def write_results_page(results: Path, pages: list[ExperimentPage] | None = None) -> Path:
    """Write one HTML page with all results and return its path.

    If `pages` are given, the records are not read again.
    """
    pages = make_experiment_pages(results) if pages is None else pages
    overall, finished = _read_discussion(results / DISCUSSION), [page.finished for page in pages]
    path = results / "report.html"
    text = render_page(
        "results.html.j2",
        title=TITLE,
        agreement=describe_agreement(finished),
        overview=make_overview_table(finished),
        costs=make_cost_overview(finished),
        overall=_convert_to_html(overall or ""),
        pages=pages,
        how_to_read=_convert_to_html(format_markdown_list(HOW_TO_READ)),
        how_to_run=_convert_to_html(format_markdown_list(HOW_TO_RUN)),
        html=_convert_to_html,
        records_version=None,
    )
    write_file(path, text)
    return path


def _convert_to_html(markdown: str) -> Markup:
    """Convert Markdown to HTML; raw HTML in the Markdown is escaped."""
    return Markup(_MARKDOWN.render(markdown))
