"""Methods at their selected settings, and the recipe that is chosen over several grids, from made-up records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_runs import write_run

from fedlog.experiments.tables.cells import list_cells
from fedlog.experiments.tables.finished_cells import collect_runs
from fedlog.experiments.tables.paper import make_table_1
from fedlog.experiments.tables.tuning_grids import GRID_MNIST, RECIPE_GRIDS, list_rows_of_method, make_tuned_table
from fedlog.report.documents.recipe_table import choose_tuned_settings
from fedlog.report.paper.method_tables import make_tuned_tables
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import AdamMoments, Decay

ROUNDS = 30


def test_the_gain_is_taken_after_as_many_rounds_and_over_common_seeds(tmp_path: Path) -> None:
    tuned = make_tuned_table(GRID_MNIST, "local-kept-0.002 fedlog-c-pull-0.1-kept-0.004", (0, 1, 2))
    for cell in list_cells(tuned, tmp_path, (), (0, 1, 2)):
        write_run(cell, [0.5] * (ROUNDS - 1) + [0.9 + cell.seed / 100], 0)
    for cell in list_cells(make_table_1("mnist"), tmp_path, ("local",), (0, 1, 5)):
        # What comes after round 30 does not count, and no tuned run has seed 5.
        write_run(cell, [0.5] * (ROUNDS - 1) + [0.8 + 2 * cell.seed / 100] + [0.99] * 70, 0)
    gained, _ = make_tuned_tables(collect_runs(tuned, tmp_path))
    alone, fedlog_c = gained.rows
    assert alone[1] == "learning_rate 0.002, moments for the run, cosine decay"
    assert alone[2:] == ("3", "91.00 ± 0.58", "84.00 ± 3.06 (3)", "+9.50 [+3.15, +15.85]", "above")
    assert fedlog_c[2:] == ("3", "91.00 ± 0.58", "", "", "")


def write_grids(folder: Path, method: str, accuracy: Callable[[int, int], float]) -> None:
    """Write every cell of the method in the recipe's grids; its accuracy follows from grid and setting."""
    for number, grid in enumerate(RECIPE_GRIDS):
        for at, row in enumerate(list_rows_of_method(method, grid)):
            for cell in list_cells(grid, folder, (row.name,)):
                write_run(cell, [accuracy(number, at)], 100)


@pytest.fixture
def grids(tmp_path: Path) -> Path:
    """Every setting of FedAvg at 50 %; in two of three grids the third setting has 60 %, in the other the last 65 %."""
    write_grids(
        tmp_path, "fedavg", lambda grid, at: 0.6 if grid < 2 and at == 2 else 0.65 if (grid, at) == (2, 7) else 0.5
    )
    return tmp_path


def test_the_recipe_takes_the_setting_with_the_highest_mean_over_the_grids(grids: Path) -> None:
    (method, choice), *others = choose_tuned_settings(grids).items()
    assert (method, others) == ("fedavg", [])  # of no other method the grids are whole
    assert choice.gains == pytest.approx({"mnist-selection": 10.0, "cifar10": 10.0, "har": 0.0})
    settings = choice.settings
    assert (settings.learning_rate_factor, settings.moments, settings.decay) == (4, AdamMoments.EPOCH, Decay.NONE)
    assert settings.options == {}


def test_the_recipe_takes_no_first_head_that_needs_an_opening_exchange(tmp_path: Path) -> None:
    rows = list_rows_of_method("fedlog", RECIPE_GRIDS[0])
    write_grids(tmp_path, "fedlog", lambda _, at: 0.5 + at / 100)  # the heads from statistics come last
    chosen = choose_tuned_settings(tmp_path)["fedlog"].chosen
    assert chosen == [row for row in rows if row.spec.options["first_head"] == "random"][-1]
    assert rows[-1].spec.options["first_head"] == "statistics"


def test_a_method_with_a_cell_missing_is_not_chosen_for(grids: Path) -> None:
    cell, *_ = list_cells(RECIPE_GRIDS[1], grids, (list_rows_of_method("fedavg", RECIPE_GRIDS[1])[3].name,))
    cell.records_file.unlink()
    assert choose_tuned_settings(grids) == {}


def test_settings_stand_in_the_same_order_in_every_grid() -> None:
    for method in {row.spec.method for row in RECIPE_GRIDS[0].rows}:
        first, *others = (
            [_without_rate(row.spec) for row in list_rows_of_method(method, grid)] for grid in RECIPE_GRIDS
        )
        assert all(other == first for other in others)


def _without_rate(spec: RunSpec) -> tuple[object, ...]:
    options = {name: value for name, value in spec.options.items() if name != "learning_rate"}
    return spec.moments, spec.decay, options
