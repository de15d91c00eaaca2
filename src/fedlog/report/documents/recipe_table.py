"""Choose the settings of `--recipe tuned`, and write their table in docs/running.md.

They are chosen from three grids, one for each of three data sets. In every grid, a method has the same eight rows:
eight combinations of settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlog.experiments.tables.cells import TableRow
from fedlog.experiments.tables.finished_cells import FinishedRuns, collect_runs
from fedlog.experiments.tables.significance import Mean
from fedlog.experiments.tables.tuning_grids import RECIPE_GRIDS, TABLE_METHODS, list_rows_of_method
from fedlog.report.parts.style import find_style
from fedlog.report.parts.tables import TextTable, replace_marked_text
from fedlog.settings.presets import TUNED, TunedSettings, find_preset

START, END = "<!-- tuned: written by `fedlog docs` -->", "<!-- end of tuned -->"


@dataclass(frozen=True)
class RecipeChoice:
    """The best of a method's eight combinations of settings, and the accuracy that it gains on each data set.

    Gains are over the method's first combination, which has the optimiser of the paper's authors.
    """

    chosen: TableRow  # of the first grid
    gains: dict[str, float]  # data set -> points

    @property
    def settings(self) -> TunedSettings:
        """The chosen settings for `--recipe tuned`; the learning rate is a multiple of that in the data's preset."""
        spec = self.chosen.spec
        options = {name: value for name, value in spec.options.items() if name != "learning_rate"}
        times = spec.options["learning_rate"] / find_preset(spec.data).learning_rate
        return TunedSettings(times, spec.moments, spec.decay, spec.weight_decay, options)


def choose_tuned_settings(results: Path) -> dict[str, RecipeChoice]:
    """Choose the best settings of each method whose runs in all grids are finished; return the choices by method."""
    grids = [collect_runs(grid, results) for grid in RECIPE_GRIDS]
    found = {method: _choose_settings_of_method(method, grids) for method in TABLE_METHODS}
    return {method: choice for method, choice in found.items() if choice is not None}


def _choose_settings_of_method(method: str, grids: Sequence[FinishedRuns]) -> RecipeChoice | None:
    """Choose the settings with the highest mean accuracy over the grids; None if a run is missing.

    Settings with `first_head=statistics` are left out: such a head needs an exchange of untrained features, which is
    impossible with different bodies and which sites refuse, so it cannot be a default.
    """
    rows = list_rows_of_method(method, grids[0].experiment)
    by_grid = []
    for grid in grids:
        finals = [grid.find_final_accuracies(row.name) for row in list_rows_of_method(method, grid.experiment)]
        if not all(set(final) >= set(grid.experiment.seeds) for final in finals):
            return None
        by_grid.append([Mean.from_values([final[seed] for seed in grid.experiment.seeds]).value for final in finals])
    totals = [sum(accuracies) for accuracies in zip(*by_grid, strict=True)]
    able = [at for at, row in enumerate(rows) if row.spec.options.get("first_head") != "statistics"]
    at = max(able, key=lambda at: totals[at])
    gains = {
        grid.experiment.data[0]: accuracies[at] - accuracies[0] for grid, accuracies in zip(grids, by_grid, strict=True)
    }
    return RecipeChoice(rows[at], gains)


def make_recipe_table(choices: Mapping[str, RecipeChoice]) -> TextTable:
    """Make a table of each method's tuned settings, and of their gains on each data set (`RecipeChoice.gains`)."""
    rows = tuple(
        (
            find_style(method).label,
            f"{tuned.learning_rate_factor:g} times the data set's",
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
    """Replace the table of tuned settings in the page, and return [page]; return [] if the page does not exist."""
    return replace_marked_text(page, START, END, make_recipe_table(choose_tuned_settings(results)).to_markdown())
