"""Write the pages of the reproduction from the records: an overview, and a page for each experiment.

Numbers come from the records. Comments by people are in `discussion.md`, in the folder of an experiment or, about all
experiments, in the results folder; they are copied into the pages.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from fedlog.experiments.tables.catalog import list_experiments_on_disk
from fedlog.experiments.tables.cells import CellState, Shape
from fedlog.experiments.tables.finished_cells import Collected, collect, read_verifications
from fedlog.experiments.tables.privacy_figure import PRIVACY_FIGURE
from fedlog.files.durable import write_file
from fedlog.report.paper import figures
from fedlog.report.paper.comparisons import HOW_TO_READ
from fedlog.report.paper.conditions import conditions_tables, draw_conditions
from fedlog.report.paper.method_tables import overview_table, tables_of
from fedlog.report.paper.other_tables import grid_table, synthetic_selection_table, synthetic_table
from fedlog.report.paper.privacy_tables import privacy_plot, privacy_tables, short_guarantee_table
from fedlog.report.paper.tuned_tables import tuned_tables
from fedlog.report.parts.render import render_page
from fedlog.report.parts.tables import TextTable, fill_marked_place

_MARKDOWN = MarkdownIt("commonmark", {"html": False})
DISCUSSION, FIGURE = "discussion.md", "figure.svg"
INDEX, PAGES = "reproduction.md", "reproduction"
GUARANTEES, GUARANTEES_END = "<!-- guarantees: written by `fedlog docs` -->", "<!-- end of guarantees -->"
TITLE = "The paper, reproduced"

HOW_TO_RUN = (
    "`fedlog docs` makes these pages from the records under `results/`; no number in a table or figure is typed. "
    "`fedlog reproduce NAME` runs an experiment, and goes on where it was stopped; `--methods` and `--seeds` choose "
    "among its cells, `--jobs` runs several side by side, and `--executor dask://host:port` "
    "(`pip install 'fedlog[dask]'`) runs them on a Dask cluster that sees the same folder. "
    "`fedlog reproduce NAME --verify` runs the first rounds of finished cells again and names those that differ."
)


@dataclass(frozen=True)
class ExperimentPage:
    """One experiment with its tables, its figure and its discussion, ready to be written."""

    found: Collected
    tables: tuple[TextTable, ...]
    figure: str | None
    discussion: str | None

    @property
    def status(self) -> str:
        """How many cells of the experiment have been run, in words."""
        states = self.found.states
        parts = [f"{states[CellState.DONE]} of {sum(states.values())} cells run"]
        if states[CellState.BEGUN]:
            parts.append(f"{states[CellState.BEGUN]} begun")
        if states[CellState.OTHER]:
            folders = ", ".join(folder.relative_to(self.found.folder).as_posix() for folder in self.found.others)
            parts.append(f"{states[CellState.OTHER]} left out: made with other settings ({folders})")
        parts += self._verification
        return ", ".join(parts)

    @property
    def _verification(self) -> list[str]:
        """How many cells today's code repeats, in words; empty if none was run again."""
        tried = read_verifications(self.found.folder)
        if not tried:
            return []
        differing = [name for name, each in tried.items() if each.first_difference is not None]
        named = f", not {', '.join(differing)}" if differing else ""
        return [f"{len(tried) - len(differing)} of {len(tried)} cells run again repeat their first rounds{named}"]

    @property
    def encoded_figure(self) -> str:
        """The figure in base64, for a page."""
        return base64.b64encode((self.figure or "").encode()).decode()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The remarks of the experiment that are not notes of a table."""
        noted = {note for table in self.tables for note in table.notes}
        return tuple(remark for remark in self.found.experiment.remarks if remark not in noted)


def sections(results: Path) -> list[ExperimentPage]:
    """The page of every experiment, run or not, and of those with another number of rounds that have records."""
    return [_section(collect(experiment, results)) for experiment in list_experiments_on_disk(results)]


def _section(found: Collected) -> ExperimentPage:
    experiment = found.experiment
    figure = None
    tables: list[TextTable]
    if found.is_empty:
        tables = []
    elif experiment.shape is Shape.GRID:
        tables = [grid_table(found)]
    elif experiment.shape is Shape.SYNTHETIC and len(experiment.rows) == 2:
        tables = [synthetic_table(found)]
        figure = figures.synthetic(found)
    elif experiment.shape is Shape.SYNTHETIC:
        tables = [synthetic_selection_table(found)]
    elif experiment.shape is Shape.CONDITIONS:
        tables = conditions_tables(found)
        figure = draw_conditions(found)
    elif experiment.shape is Shape.TUNED:
        tables = tuned_tables(found)
        figure = figures.curves(found)
    elif experiment.shape is Shape.PRIVACY:
        tables = privacy_tables(found)
        figure = privacy_plot(found)
    else:
        tables = tables_of(found)
        figure = figures.curves(found)
    return ExperimentPage(found, tuple(tables), figure, _read(found.folder / DISCUSSION))


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None


def write_markdown(results: Path, docs: Path, found: list[ExperimentPage] | None = None) -> list[Path]:
    """Write the overview, a page for each experiment and the figures beside their records; return their paths.

    With `found` the records are not read again.
    """
    found = sections(results) if found is None else found
    pages = docs / PAGES
    pages.mkdir(parents=True, exist_ok=True)
    written = []
    for section in found:
        page = pages / f"{section.found.experiment.name}.md"
        if section.figure is not None:
            write_file(section.found.folder / FIGURE, section.figure)
            written.append(section.found.folder / FIGURE)
        write_file(page, _page(section, pages))
        written.append(page)
    for page in set(pages.glob("*.md")) - set(written):
        page.unlink()  # of an experiment that is no more
    index = docs / INDEX
    write_file(index, _index(found, results))
    return [index, *_write_guarantees(results, docs / "privacy.md"), *written]


def _page(section: ExperimentPage, pages: Path) -> str:
    """The page of one experiment in Markdown."""
    experiment = section.found.experiment
    parts = [f"# {experiment.title}\n", f"`{experiment.command}`: {section.status}. [Overview](../{INDEX}).\n"]
    parts += [f"{remark}\n" for remark in section.remarks]
    parts += [table.markdown() for table in section.tables]
    if section.figure is not None:
        parts.append(f"![{experiment.title}]({_relative(section.found.folder / FIGURE, pages)})\n")
    if section.discussion is not None:
        parts.append(section.discussion + "\n")
    return "\n".join(parts)


def _index(found: list[ExperimentPage], results: Path) -> str:
    """The first page in Markdown: the overview table, its discussion, and links to the experiments."""
    overall = _read(results / DISCUSSION)
    links = [f"- [{s.found.experiment.title}]({PAGES}/{s.found.experiment.name}.md): {s.status}" for s in found]
    parts = [
        f"# {TITLE}\n",
        overview_table([section.found for section in found]).markdown(),
        *([overall + "\n"] if overall else []),
        "## Experiments\n",
        "\n".join(links) + "\n",
        "## How to read the tables\n",
        *(f"{note}\n" for note in HOW_TO_READ),
        "## How to run them\n",
        HOW_TO_RUN + "\n",
    ]
    return "\n".join(parts)


def _write_guarantees(results: Path, page: Path) -> list[Path]:
    """Write the table of guarantees into its place in the page on privacy; do nothing if there is no such page."""
    if not page.exists():
        return []
    table = short_guarantee_table(collect(PRIVACY_FIGURE, results))
    fill_marked_place(page, GUARANTEES, GUARANTEES_END, table.markdown())
    return [page]


def write_results_page(results: Path, found: list[ExperimentPage] | None = None) -> Path:
    """Write one HTML page with all results and figures; return its path. With `found` records are not read again."""
    found = sections(results) if found is None else found
    overall = _read(results / DISCUSSION)
    path = results / "report.html"
    page = render_page(
        "results.html.j2",
        title=TITLE,
        overview=overview_table([section.found for section in found]),
        overall=_html(overall or ""),
        sections=found,
        how_to_read=[_html(note) for note in HOW_TO_READ],
        how_to_run=_html(HOW_TO_RUN),
        html=_html,
        live=None,
    )
    write_file(path, page)
    return path


def _html(markdown: str) -> Markup:
    """The Markdown as HTML; raw HTML in it is escaped."""
    return Markup(_MARKDOWN.render(markdown))


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
