"""The tables of `when-to-choose`, from made-up records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from made_up_runs import write_run

from fedlog.experiments.tables.cells import Experiment, list_cells
from fedlog.experiments.tables.finished_cells import FinishedRuns, collect_runs
from fedlog.experiments.tables.tuning_grids import EQUAL_CHANCES, METHODS, TABLE_METHODS
from fedlog.experiments.tables.when_to_choose import ROUNDS, SELECTED_MNIST, SELECTED_WINE, WHEN_TO_CHOOSE
from fedlog.report.documents.method_results import GAINS
from fedlog.report.paper.when_to_choose import (
    END_MARK,
    MARK,
    draw_conditions_figure,
    make_bits_table,
    make_rounds_table,
    make_short_conditions_table,
    write_when_to_choose_table,
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> FinishedRuns:
    """Training alone levels off at 0.8 + seed / 100; FedLog is two points above it and sends 1000 bits each way."""
    results: Path = tmp_path_factory.mktemp("results")
    for method, gain in (("local", 0.0), ("fedlog", 0.02)):
        for cell in list_cells(WHEN_TO_CHOOSE, results, (f"10-records-{method}",), (0, 1, 2)):
            curve = [0.5 + gain] * 4 + [0.8 + gain + cell.seed / 100] * (ROUNDS - 4)
            write_run(cell, curve, 0 if method == "local" else 40_000, opening=0)
    return collect_runs(WHEN_TO_CHOOSE, results)


@pytest.mark.parametrize("grid", EQUAL_CHANCES, ids=lambda grid: grid.name)
def test_every_method_has_as_many_settings_to_choose_from(grid: Experiment) -> None:
    settings = Counter(row.spec.method for row in grid.rows)
    assert set(settings) in (set(METHODS), set(TABLE_METHODS))
    assert set(settings.values()) == {8}
    assert not set(grid.seeds) & set(WHEN_TO_CHOOSE.seeds)


def test_every_condition_has_the_settings_that_its_grid_chose() -> None:
    for condition, chosen in (("10-records", SELECTED_MNIST), ("wine", SELECTED_WINE)):
        settings = [EQUAL_CHANCES[0].find_row(name).spec for name in chosen.split()]
        assert [setting.method for setting in settings] == list(METHODS)
        for setting in settings:
            row = WHEN_TO_CHOOSE.find_row(f"{condition}-{setting.method}").spec
            assert (row.moments, row.decay, row.options) == (setting.moments, setting.decay, setting.options)


def test_accuracy_by_round_and_the_gain_on_training_alone(found: FinishedRuns) -> None:
    table = make_rounds_table(found)
    alone, ours = table.rows
    assert alone[2:] == ("50.0 ± 0.0", *["81.0 ± 0.6"] * 4, "", "", "")
    assert ours[1:] == ("3", "52.0 ± 0.0", *["83.0 ± 0.6"] * 4, "+2.0 [+2.0, +2.0]", "+2.0 [+2.0, +2.0]", "above")
    assert "10 records, 2 classes +0.0" in table.notes[0]
    assert table.notes[1].startswith(
        "Not run: 10 records, 2 classes (FedLog-C, FedProto, LG-FedAvg 1, FedAvg, FedDBE); "
    )
    assert "Dirichlet 0.5; wine, sites of" in table.notes[1]


def test_accuracy_by_bits_counts_whole_rounds(found: FinishedRuns) -> None:
    (row,) = make_bits_table(found).rows  # what sends nothing has no row
    # 80,000 bits a round: one round within 0.1 Mb, twelve within 1 Mb, all forty within 10 Mb.
    assert row[1:] == ("3.20 Mb", "52.0 ± 0.0", "83.0 ± 0.6", "83.0 ± 0.6")


def test_the_page_has_a_line_for_each_condition_that_was_run_whole(found: FinishedRuns, tmp_path: Path) -> None:
    assert (
        len(make_short_conditions_table(found).to_markdown().splitlines()) == 2
    )  # most methods are missing in the only one
    page = tmp_path / "page.md"
    assert write_when_to_choose_table(found.folder.parent, page) == []
    page.write_text(f"before\n{MARK}\nold\n{END_MARK}\nafter\n")
    assert write_when_to_choose_table(found.folder.parent, page) == [page]
    assert page.read_text() == f"before\n{MARK}\n{make_short_conditions_table(found).to_markdown()}{END_MARK}\nafter\n"


def test_the_page_has_the_figures_of_the_records() -> None:
    root = Path(__file__).parents[2]
    if not (root / "results").exists():
        pytest.skip("an installed package has no records")
    assert (
        make_short_conditions_table(collect_runs(WHEN_TO_CHOOSE, root / "results")).to_markdown()
        in (root / "docs" / GAINS).read_text()
    )


def test_the_picture_has_a_panel_for_what_was_run(found: FinishedRuns) -> None:
    drawn = draw_conditions_figure(found)
    assert "10 records, 2 classes" in drawn
    assert "wine" not in drawn
