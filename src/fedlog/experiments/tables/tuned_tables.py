"""Table 1 with every method at the highest of its eight settings: the same number to choose from for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedlog.experiments.tables.cells import Experiment, Row, Shape
from fedlog.experiments.tables.equal_chances import GRID_CIFAR10, GRID_MNIST, ROUNDS, copy_setting
from fedlog.experiments.tables.paper import LABELS, REFERENCE, TEN_SEEDS
from fedlog.settings.spec import RunSpec

GRIDS = {"mnist": GRID_MNIST, "cifar10": GRID_CIFAR10}
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
    "cifar10": {
        "fedavg": "fedavg-kept-0.004",
        "lg-fedavg-1": "lg-fedavg-1-authors-0.004",
        "lg-fedavg-2": "lg-fedavg-2-authors-0.004",
        "fedper": "fedper-kept-0.004",
        "fedrep": "fedrep-head-epochs-10-kept-0.002",
        "cs-fl": "cs-fl-step-1-kept-0.002",
        "fedbabu": "fedbabu-kept-0.004",
        "fedproto": "fedproto-lambda-10-authors-0.002",
        "feddbe": "feddbe-kappa-1-authors-0.002",
        "fedlog": "fedlog-random-kept-0.002",
        "fedlog-c": "fedlog-c-pull-0.3-kept-0.002",
        "local": "local-authors-0.002",
    },
}


def make_tuned_table(data: str, selected: Mapping[str, str]) -> Experiment:
    """Table 1 on that data set, with each method at the named row of its grid."""
    plain = RunSpec(data=data, rounds=ROUNDS)
    return Experiment(
        name=f"table-tuned-{data}",
        title=f"Table 1 on {data}, every method at the highest of its eight settings, {ROUNDS} rounds",
        shape=Shape.TUNED,
        rows=tuple(
            Row(method, LABELS[method], copy_setting(GRIDS[data], row, replace(plain, method=method)))
            for method, row in selected.items()
        ),
        seeds=SEEDS[data],
        reference=REFERENCE,
        remarks=(
            f"The settings are the highest in `{GRIDS[data].name}`, on no test record and no seed of this table. "
            f"Beside them the paper's settings after {ROUNDS} rounds, from the records of `table-{data}`: with a level "
            "rate a run's first rounds do not depend on how many follow.",
        ),
    )


TUNED_TABLES = tuple(make_tuned_table(data, selected) for data, selected in SELECTED.items())
