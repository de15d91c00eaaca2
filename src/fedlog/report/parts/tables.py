"""A table of texts, written as Markdown, HTML, CSV or LaTeX, and put into its place in a page of the documentation."""

from __future__ import annotations

import csv
import html
import io
from dataclasses import dataclass, field
from pathlib import Path

from fedlog.errors import InputError
from fedlog.experiments.tables.finished_cells import Collected
from fedlog.experiments.tables.significance import Mean
from fedlog.files.durable import write_file
from fedlog.wire.bits_text import choose_unit, describe_bits

NOT_RUN = "not run"
# Characters that LaTeX treats specially or lacks, and how to write them.
_IN_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "→": r"$\to$",
    "⇑": r"$\Uparrow$",
    "⇓": r"$\Downarrow$",
    "↓": r"$\downarrow$",
}


@dataclass(frozen=True)
class TextTable:
    """Columns and rows of text; the first column is a name. Notes are written below the table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = field(default=())

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [f"**{self.title}**", ""] if self.title else []
        lines += [_markdown_row(self.columns), "|".join(["", "---", *["---:"] * (len(self.columns) - 1), ""])]
        lines += [_markdown_row(row) for row in self.rows]
        lines += [f"\n{note}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """The table in HTML."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in self.rows)
        title = f"<h3>{html.escape(self.title)}</h3>" if self.title else ""
        notes = "".join(f"<p class='note'>{html.escape(note)}</p>" for note in self.notes)
        return (
            f'{title}<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}'
        )

    def csv(self) -> str:
        """The table as comma-separated values, the first line its columns."""
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows([self.columns, *self.rows])
        return written.getvalue()

    def latex(self) -> str:
        """The table in LaTeX, with the rules of `booktabs`; its title is a comment above it."""
        lines = [f"% {self.title}"] if self.title else []
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", "\\toprule"]
        lines += [" & ".join(_latex(cell) for cell in self.columns) + " \\\\", "\\midrule"]
        lines += [" & ".join(_latex(cell) for cell in row) + " \\\\" for row in self.rows]
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _latex(text: str) -> str:
    return "".join(_IN_LATEX.get(character, character) for character in text)


def _markdown_row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def not_run_note(found: Collected) -> tuple[str, ...]:
    """A note with the rows that have not been run; empty if all have."""
    missing = [row.label for row in found.experiment.rows if not found.runs[row.name]]
    if not missing:
        return ()
    everything = len(missing) == len(found.experiment.rows)
    return (f"{NOT_RUN.capitalize()}: {'any row' if everything else ', '.join(missing)}.",)


def with_error(mean: Mean, digits: int = 2) -> str:
    """A mean with its standard error, `98.41 ± 0.07`; the mean alone for one seed."""
    error = "" if mean.error is None else f" ± {mean.error:.{digits}f}"
    return f"{mean.value:.{digits}f}{error}"


def difference_with_error(mean: Mean, digits: int = 2) -> str:
    """A mean difference with its sign and standard error, `+0.31 ± 0.07`."""
    return ("+" if mean.value >= 0 else "") + with_error(mean, digits)


def bits_with_error(mean: Mean) -> str:
    """Mean bits with their standard error, `3.02 ± 0.17 Mb`: three significant digits of the mean."""
    if mean.error is None:
        return describe_bits(mean.value)
    unit, size = choose_unit(mean.value)
    value, error = mean.value / size, mean.error / size
    digits = 0 if unit == "b" else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} ± {error:.{digits}f} {unit}"


def p_value(p: float) -> str:
    """A p value with four decimals, or as `2.0e-05` if it is smaller."""
    return f"{p:.4f}" if p >= 0.0001 else f"{p:.1e}"


def fill_marked_place(page: Path, start: str, end: str, content: str) -> None:
    """Replace the text between the marks `start` and `end` of the page; InputError if the page does not have them."""
    before, begun, rest = page.read_text().partition(start)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise InputError(f"{page} does not have the marks {start} and {end}", hint="add both on lines of their own")
    write_file(page, f"{before}{start}\n{content}{end}{after}")
