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
SELECTED: dict[str, dict[str, str]] = {
    "mnist": {
        "fedavg": "fedavg-kept-0.008",
        "lg-fedavg-1": "lg-fedavg-1-kept-0.008",
        "lg-fedavg-2": "lg-fedavg-2-kept-0.004",
        "fedper": "fedper-kept-0.008",
        "fedrep": "fedrep-head-epochs-1-kept-0.004",
        "cs-fl": "cs-fl-step-1-kept-0.004",
        "fedbabu": "fedbabu-kept-0.008",
        "fedproto": "fedproto-lambda-1-kept-0.004",
        "feddbe": "feddbe-kappa-1-kept-0.004",
        "fedlog": "fedlog-random-kept-0.004",
        "fedlog-c": "fedlog-c-pull-0.3-kept-0.004",
        "local": "local-kept-0.008",
    },
    "cifar10": {},  # its grid has not been run
}


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
