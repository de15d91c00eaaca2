"""Table 1 with every method at the highest of its eight settings: the same number to choose from for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedlog.experiments.tables.cells import Experiment, Row, Shape
from fedlog.experiments.tables.equal_chances import ROUNDS, TABLE_CIFAR10, TABLE_MNIST
from fedlog.experiments.tables.paper import LABELS, REFERENCE, TEN_SEEDS
from fedlog.settings.spec import RunSpec

GRIDS = {"mnist": TABLE_MNIST, "cifar10": TABLE_CIFAR10}
SEEDS = {"mnist": TEN_SEEDS, "cifar10": (0, 1, 2)}

# Method -> the row of its grid that was highest there, the first of equals.
SELECTED: dict[str, dict[str, str]] = {"mnist": {}, "cifar10": {}}


def _row(data: str, method: str, name: str) -> Row:
    chosen = GRIDS[data].row(name).spec
    plain = RunSpec(data=data, method=method, rounds=ROUNDS)
    return Row(
        method,
        LABELS[method],
        replace(plain, moments=chosen.moments, decay=chosen.decay, options=chosen.options),
    )


def make_tuned_table(data: str, selected: Mapping[str, str]) -> Experiment:
    """Table 1 on that data set, with each method at the named row of its grid."""
    return Experiment(
        name=f"table-tuned-{data}",
        title=f"Table 1 on {data}, every method at the highest of its eight settings, {ROUNDS} rounds",
        shape=Shape.TUNED,
        rows=tuple(_row(data, method, name) for method, name in selected.items()),
        seeds=SEEDS[data],
        reference=REFERENCE,
        remarks=(
            f"The settings are the highest in `{GRIDS[data].name}`, on no test record and no seed of this table. "
            f"Beside them the paper's settings after {ROUNDS} rounds, from the records of `table-{data}`: with a level "
            "rate a run's first rounds do not depend on how many follow.",
        ),
    )


TUNED_TABLES = tuple(make_tuned_table(data, selected) for data, selected in SELECTED.items() if selected)
