"""The printed values of the paper's Table 1 appear in the report without change."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_runs import write_run

from fedlog.experiments.tables.catalog import EXPERIMENTS
from fedlog.experiments.tables.cells import list_cells
from fedlog.experiments.tables.finished_cells import collect_runs
from fedlog.experiments.tables.paper import LABELS, TABLE_1
from fedlog.report.paper.cost_table import make_cost_table
from fedlog.report.paper.method_tables import make_accuracy_table
from fedlog.report.parts.tables import TextTable


def shown(data: str, out: Path) -> dict[str, tuple[str, str]]:
    """Printed accuracy and cost by row, in a report of one made-up run of each."""
    experiment = EXPERIMENTS[f"table-{data}"]
    for cell in list_cells(experiment, out, seeds=(0,)):
        write_run(cell, [0.5], 10)
    found, threshold = collect_runs(experiment, out), experiment.threshold
    assert threshold is not None
    accuracy, cost = (
        _column(table, "paper") for table in (make_accuracy_table(found), make_cost_table(found, threshold))
    )
    return {label: (accuracy[label], cost[label]) for label in accuracy}


def _column(table: TextTable, heading: str) -> dict[str, str]:
    at = next(at for at, column in enumerate(table.columns) if column.split(",")[0] == heading)
    return {row[0]: row[at] for row in table.rows}


@pytest.mark.parametrize("data", TABLE_1)
def test_every_printed_value_is_shown_with_its_own_digits(data: str, tmp_path: Path) -> None:
    found = shown(data, tmp_path)
    lines = TABLE_1[data].printed.split("\n")[1:-1]
    assert len(lines) == 11
    for line in lines:
        method, accuracy, error, arrow, cost, cost_error, unit, cost_arrow = line.split()
        assert found[LABELS[method]] == (
            f"{accuracy} ± {error} {arrow}".removesuffix(" -"),
            f"{cost} ± {cost_error} {unit} {cost_arrow}".removesuffix(" -"),
        )


# Read off the published table once more, apart from the text that is tested.
PUBLISHED = {
    "mnist": {
        "FedAvg": ("89.76 ± 0.69 ⇓", "3.45 ± 0.02 Gb ⇑"),
        "FedRep": ("95.51 ± 0.29 ⇓", "36.3 ± 3.38 Mb ⇑"),
        "FedProto": ("98.19 ± 0.06 ⇓", "3.02 ± 0.17 Mb"),
        "FedLog": ("98.15 ± 0.05 ⇓", "3.18 ± 0.31 Mb"),
        "FedLog-C": ("98.41 ± 0.07", "3.18 ± 0.15 Mb"),
    },
    "cifar10": {
        "FedAvg": ("26.29 ± 0.44 ⇓", "37.9 ± 1.31 Gb ⇑"),
        "CS-FL": ("23.60 ± 1.08 ⇓", "2.72 ± 0.41 Gb ⇑"),
        "FedDBE": ("72.77 ± 0.79 ⇓", "38.3 ± 0.95 Gb ⇑"),
        "FedLog": ("87.08 ± 0.22 ⇓", "0.14 ± 0.01 Gb ⇑"),
        "FedLog-C": ("87.57 ± 0.25", "0.11 ± 0.01 Gb"),
    },
    "cifar100": {
        "FedAvg": ("13.34 ± 0.15 ⇓", "69.1 ± 0.47 Gb ⇑"),
        "CS-FL": ("4.52 ± 0.15 ⇓", "13.7 ± 0.22 Gb ⇑"),
        "FedBABU": ("9.70 ± 0.16 ⇓", "59.3 ± 0.31 Gb ⇑"),
        "FedLog": ("56.46 ± 0.27 ⇓", "2.38 ± 0.09 Gb ⇓"),
        "FedLog-C": ("56.78 ± 0.26", "2.74 ± 0.12 Gb"),
    },
}


@pytest.mark.parametrize("data", PUBLISHED)
def test_the_values_are_those_that_were_published(data: str, tmp_path: Path) -> None:
    found = shown(data, tmp_path)
    assert {label: found[label] for label in PUBLISHED[data]} == PUBLISHED[data]


def test_the_number_behind_a_printed_cost_is_in_bits() -> None:
    mnist = EXPERIMENTS["table-mnist"]
    costs = {name: mnist.find_row(name).printed.cost for name in ("fedavg", "fedrep", "fedlog-c")}
    assert costs == pytest.approx({"fedavg": 3.45e9, "fedrep": 36.3e6, "fedlog-c": 3.18e6})
