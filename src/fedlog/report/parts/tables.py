"""Write tables of text as Markdown, CSV or LaTeX, format numbers, and replace tables in pages of docs/."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedlog.errors import InputError
from fedlog.experiments.tables.finished_cells import FinishedRuns
from fedlog.experiments.tables.significance import Mean
from fedlog.files.durable import write_file
from fedlog.wire.bits_text import choose_unit, describe_bits

NOT_RUN = "not run"
# Characters that LaTeX treats specially or lacks, and how to write them.
LATEX_ESCAPES = {character: f"\\{character}" for character in "&%$#_{}"} | {
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
    """A table of texts; the first column has the names of the rows, and the notes are written below the table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def from_rows(cls, rows: Iterable[Mapping[str, str]], title: str = "", notes: tuple[str, ...] = ()) -> Self:
        """Make a table of these rows, each a mapping from column to text; a table without rows has no columns."""
        rows = list(rows)
        return cls(tuple(rows[0]) if rows else (), tuple(tuple(row.values()) for row in rows), title, notes)

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [f"**{self.title}**", ""] if self.title else []
        lines += [_format_markdown_row(self.columns), "|".join(["", "---", *["---:"] * (len(self.columns) - 1), ""])]
        lines += [_format_markdown_row(row) for row in self.rows]
        lines += ["", format_markdown_list(self.notes).rstrip()] if self.notes else []
        return "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """Return the table as comma-separated values; the first line has the names of the columns."""
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows([self.columns, *self.rows])
        return written.getvalue()

    def to_latex(self) -> str:
        """Return the table in LaTeX with lines of the package `booktabs`; the title is a comment above the table."""
        lines = [f"% {self.title}"] if self.title else []
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", "\\toprule"]
        lines += [" & ".join(_escape_latex(cell) for cell in self.columns) + " \\\\", "\\midrule"]
        lines += [" & ".join(_escape_latex(cell) for cell in row) + " \\\\" for row in self.rows]
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def format_markdown_list(texts: Sequence[str]) -> str:
    """Return the texts as a list in Markdown; a single text as a paragraph."""
    return "".join(f"- {text}\n" for text in texts) if len(texts) > 1 else "".join(f"{text}\n" for text in texts)


def _escape_latex(text: str) -> str:
    return "".join(LATEX_ESCAPES.get(character, character) for character in text)


def _format_markdown_row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def list_notes_on_missing_rows(finished: FinishedRuns) -> tuple[str, ...]:
    """Return a note that names the rows that have not been run, in a tuple; empty if all have been."""
    missing = [row.label for row in finished.experiment.rows if not finished.runs[row.name]]
    if not missing:
        return ()
    everything = len(missing) == len(finished.experiment.rows)
    return (f"{NOT_RUN.capitalize()}: {'any row' if everything else ', '.join(missing)}.",)


def format_mean(mean: Mean, digits: int = 2) -> str:
    """Format a mean with its standard error, as `98.41 ± 0.07`; if there is only one seed, as `98.41`."""
    error = "" if mean.error is None else f" ± {mean.error:.{digits}f}"
    return f"{mean.value:.{digits}f}{error}"


def format_mean_of_values(values: Iterable[float], digits: int = 2) -> str:
    """Format the mean of the values with its standard error; blank if there are no values."""
    known = list(values)
    return format_mean(Mean.from_values(known), digits) if known else ""


def format_difference(mean: Mean | None, digits: int = 2) -> str:
    """Format a mean difference with its sign and standard error, as `+0.31 ± 0.07`; blank for None."""
    return "" if mean is None else ("+" if mean.value >= 0 else "") + format_mean(mean, digits)


def format_with_interval(value: float, low: float | None, high: float | None, digits: int = 2) -> str:
    """Format a difference with its sign and interval, as `-0.31 [-0.52, -0.11]`; without an interval, as `-0.31`."""
    interval = "" if low is None or high is None else f" [{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{value:+.{digits}f}{interval}"


def format_bits(mean: Mean) -> str:
    """Format a mean number of bits, to three significant digits, with its standard error, as `3.02 ± 0.17 Mb`."""
    if mean.error is None:
        return describe_bits(mean.value)
    unit, size = choose_unit(mean.value)
    value, error = mean.value / size, mean.error / size
    digits = 0 if unit == "b" else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} ± {error:.{digits}f} {unit}"


def format_p_value(p: float) -> str:
    """Format a p value with four decimals or, if it is too small for that, as `2.0e-05`."""
    return f"{p:.4f}" if p >= 0.0001 else f"{p:.1e}"


def replace_marked_text(page: Path, start: str, end: str, content: str) -> list[Path]:
    """Replace the text between the marks `start` and `end` of a page, and return [page].

    Return [] if the page does not exist; InputError if one of the marks is missing.
    """
    if not page.exists():
        return []
    before, begun, rest = page.read_text().partition(start)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise InputError(
            f"{page} lacks the mark {start}, or after it the mark {end}",
            hint="add what is missing to the page, each mark on its own line",
        )
    write_file(page, f"{before}{start}\n{content}{end}{after}")
    return [page]
