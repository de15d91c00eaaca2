"""The table in docs/running.md of the settings that `--recipe tuned` chooses."""

from __future__ import annotations

from pathlib import Path

from fedlog.report.parts.style import find_style
from fedlog.report.parts.tables import TextTable, replace_marked_text
from fedlog.settings.presets import TUNED

START, END = "<!-- tuned: written by `fedlog docs` -->", "<!-- end of tuned -->"


def recipe_table() -> TextTable:
    """A table with one row for each method that has tuned settings."""
    rows = tuple(
        (
            find_style(method).label,
            f"{tuned.times_rate:g} times the data set's",
            f"for the {tuned.moments}" if tuned.moments.value == "run" else f"anew each {tuned.moments}",
            str(tuned.decay),
            f"{tuned.weight_decay:g}",
            ", ".join(f"{name} {value}" for name, value in tuned.options.items()),
        )
        for method, tuned in TUNED.items()
    )
    return TextTable(("method", "learning rate in round 1", "Adam's moments", "decay", "weight decay", "options"), rows)


def write_recipe_table(page: Path) -> list[Path]:
    """Write the table into its place in the page and return its path; do nothing if there is no such page."""
    return replace_marked_text(page, START, END, recipe_table().markdown())
