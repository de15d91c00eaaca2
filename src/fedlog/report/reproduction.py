"""The reproduction as one document: every experiment's tables, figure and discussion, from the committed records.

Numbers come from the records. What a person has to say about an experiment stands in its folder as `discussion.md`, and
is taken into the document as it is.
"""

from __future__ import annotations

import base64
import html
import os
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from fedlog.errors import InputError
from fedlog.experiments.run.records import write_whole
from fedlog.experiments.tables.catalog import on_disk
from fedlog.experiments.tables.cells import CellState, Shape
from fedlog.experiments.tables.finished_cells import Collected, collect
from fedlog.experiments.tables.privacy_figure import PRIVACY_FIGURE
from fedlog.report import figures
from fedlog.report.method_tables import tables_of
from fedlog.report.other_tables import grid_table, synthetic_selection_table, synthetic_table
from fedlog.report.privacy_plot import privacy_plot
from fedlog.report.privacy_tables import privacy_tables, short_guarantee_table
from fedlog.report.tables import Table

_MARKDOWN = MarkdownIt("commonmark", {"html": False})
DISCUSSION, FIGURE = "discussion.md", "figure.svg"
GUARANTEES, GUARANTEES_END = "<!-- guarantees: written by `fedlog docs` -->", "<!-- end of guarantees -->"

INTRODUCTION = (
    "This page is made from the records under `results/` by `fedlog docs`; no number in its tables and figures is "
    "typed, and what is said below them stands as `discussion.md` beside the records. The final round is the "
    "headline of every run. `fedlog reproduce NAME` runs an experiment, and goes on where it was stopped; "
    "`--methods` and `--seeds` choose among its cells, `--jobs` runs several side by side, and `--executor "
    "dask://host:port` (`pip install 'fedlog[dask]'`) on a Dask cluster that sees the same folder. A cell that "
    "has not been run says so. Accuracies are means over clients, each on its own held-out records; ± is the "
    "standard error over seeds. Bits are those of the encoded messages of all clients, framing and opening "
    "exchange included."
)


@dataclass(frozen=True)
class Section:
    """One experiment, ready to be written."""

    found: Collected
    tables: tuple[Table, ...]
    figure: str | None
    discussion: str | None

    @property
    def status(self) -> str:
        """How much of it has been run."""
        states = self.found.states
        told = [f"{states[CellState.DONE]} of {sum(states.values())} cells run"]
        if states[CellState.BEGUN]:
            told.append(f"{states[CellState.BEGUN]} begun")
        if states[CellState.OTHER]:
            folders = ", ".join(folder.relative_to(self.found.folder).as_posix() for folder in self.found.others)
            told.append(f"{states[CellState.OTHER]} left out: made with other settings ({folders})")
        return ", ".join(told)


def sections(results: Path) -> list[Section]:
    """Every experiment that the specifications have, run or not, and what is there of shorter ones."""
    return [_section(collect(experiment, results)) for experiment in on_disk(results)]


def _section(found: Collected) -> Section:
    experiment = found.experiment
    figure = None
    tables: list[Table]
    if experiment.shape is Shape.GRID:
        tables = [grid_table(found)]
    elif experiment.shape is Shape.SYNTHETIC and len(experiment.rows) == 2:
        tables = [synthetic_table(found)]
        figure = None if found.nothing else figures.synthetic(found)
    elif experiment.shape is Shape.SYNTHETIC:
        tables = [synthetic_selection_table(found)]
    elif experiment.shape is Shape.PRIVACY:
        tables = privacy_tables(found)
        figure = None if found.nothing else privacy_plot(found)
    else:
        tables = tables_of(found)
        figure = None if found.nothing else figures.curves(found)
    path = found.folder / DISCUSSION
    return Section(found, tuple(tables), figure, path.read_text() if path.exists() else None)


def write_markdown(results: Path, docs: Path) -> list[Path]:
    """The files written: `reproduction.md`, each figure beside its records, and tables inside other pages."""
    written = []
    parts = ["# The paper, reproduced\n", INTRODUCTION + "\n"]
    for section in sections(results):
        experiment = section.found.experiment
        parts.append(f"## {experiment.title}\n\n`{experiment.command}`: {section.status}.\n")
        parts += [f"{remark}\n" for remark in _remarks(section)]
        parts += [table.markdown() for table in section.tables]
        if section.figure is not None:
            path = section.found.folder / FIGURE
            write_whole(path, section.figure)
            written.append(path)
            parts.append(f"![{experiment.title}]({_relative(path, docs)})\n")
        if section.discussion is not None:
            parts.append(section.discussion.strip() + "\n")
    page = docs / "reproduction.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    write_whole(page, "\n".join(parts))
    return [page, *_write_guarantees(results, docs / "privacy.md"), *written]


def _write_guarantees(results: Path, page: Path) -> list[Path]:
    """The page on privacy, if it is there, with the table of what is promised and what it costs in its place."""
    if not page.exists():
        return []
    before, start, rest = page.read_text().partition(GUARANTEES)
    _, end, after = rest.partition(GUARANTEES_END)
    if not (start and end):
        raise InputError(f"{page} has no place for the table of guarantees", hint=f"{GUARANTEES} and {GUARANTEES_END}")
    table = short_guarantee_table(collect(PRIVACY_FIGURE, results))
    write_whole(page, f"{before}{start}\n{table.markdown()}{end}{after}")
    return [page]


def write_results_page(results: Path) -> Path:
    """The path of one HTML page with everything, figures inside."""
    parts = [f"<p>{html.escape(INTRODUCTION)}</p>"]
    for section in sections(results):
        experiment = section.found.experiment
        parts.append(f"<h2>{html.escape(experiment.title)}</h2>")
        parts.append(f"<p><code>{experiment.command}</code>: {html.escape(section.status)}.</p>")
        parts += [f"<p>{html.escape(remark)}</p>" for remark in _remarks(section)]
        parts += [table.html() for table in section.tables]
        if section.figure is not None:
            encoded = base64.b64encode(section.figure.encode()).decode()
            parts.append(
                f'<p><img alt="{html.escape(experiment.title)}" src="data:image/svg+xml;base64,{encoded}"></p>'
            )
        if section.discussion is not None:
            parts.append(_MARKDOWN.render(section.discussion))
    path = results / "report.html"
    write_whole(path, _PAGE.format(body="\n".join(parts)))
    return path


def _remarks(section: Section) -> tuple[str, ...]:
    """What the specification says, unless a table says it already."""
    told = {note for table in section.tables for note in table.notes}
    return tuple(remark for remark in section.found.experiment.remarks if remark not in told)


def _relative(path: Path, docs: Path) -> str:
    return Path(os.path.relpath(path.resolve(), docs.resolve())).as_posix()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>The paper, reproduced</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; color: #222; }}
 table {{ border-collapse: collapse; font-size: .85rem; }}
 td, th {{ padding: .25rem .6rem; border-bottom: 1px solid #ddd; }}
 td + td {{ text-align: right; font-variant-numeric: tabular-nums; }} .note {{ color: #555; font-size: .85rem; }}
 img {{ max-width: 100%; }}
</style></head><body>
<h1>The paper, reproduced</h1>
{body}
</body></html>
"""
