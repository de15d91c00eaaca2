"""The table in docs/running.md of the settings that `--recipe tuned` chooses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedlog.experiments.tables.equal_chances import RECIPE_GRIDS
from fedlog.experiments.tables.recipe_choice import RecipeChoice, choose_settings
from fedlog.report.parts.style import find_style
from fedlog.report.parts.tables import TextTable, replace_marked_text
from fedlog.settings.presets import TUNED

START, END = "<!-- tuned: written by `fedlog docs` -->", "<!-- end of tuned -->"


def recipe_table(choices: Mapping[str, RecipeChoice]) -> TextTable:
    """A table with one row for each method that has tuned settings, and what they gained in each grid."""
    rows = tuple(
        (
            find_style(method).label,
            f"{tuned.times_rate:g} times the data set's",
            f"for the {tuned.moments}" if tuned.moments.value == "run" else f"anew each {tuned.moments}",
            str(tuned.decay),
            ", ".join(f"{name} {value}" for name, value in tuned.options.items()),
            *(f"{points:+.1f}" for points in choices[method].gains.values()),
        )
        for method, tuned in TUNED.items()
        if method in choices
    )
    gains = tuple(f"on {grid.data[0].removesuffix('-selection')}" for grid in RECIPE_GRIDS)
    return TextTable(("method", "learning rate in round 1", "Adam's moments", "decay", "options", *gains), rows)


def write_recipe_table(results: Path, page: Path) -> list[Path]:
    """Write the table into its place in the page and return its path; do nothing if there is no such page."""
    return replace_marked_text(page, START, END, recipe_table(choose_settings(results)).markdown())
