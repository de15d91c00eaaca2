"""One grid of the same size for every method: its learning rate, its optimiser and its own parameter.

For few records a client, where methods differ most: on MNIST images that no table uses, and on a small table. And for
every method of Table 1, with the clients of its MNIST part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedlog.experiments.tables.cells import Experiment, Row, Shape
from fedlog.experiments.tables.paper import LABELS
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import AdamMoments, Decay, Judge

METHODS = ("local", "fedlog", "fedlog-c", "fedproto", "lg-fedavg-1", "fedavg", "feddbe")
TABLE_METHODS = (*METHODS, "lg-fedavg-2", "fedper", "fedrep", "cs-fl", "fedbabu")
CLIENTS, RECORDS, TEST_RECORDS = 20, 20, 2000  # records of a client
ROUNDS = 30
SEEDS = (100, 101)  # never among a table's seeds

# The authors' way, and the one that `select-rate-mnist` supports.
OPTIMISERS: dict[str, dict[str, Any]] = {
    "authors": {"moments": AdamMoments.EPOCH, "decay": Decay.NONE},
    "kept": {"moments": AdamMoments.RUN, "decay": Decay.COSINE},
}
RATES = (0.001, 0.002, 0.004, 0.008)
FEWER_RATES = (0.001, 0.004)  # of a method that has a parameter of its own to choose
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "fedlog": {"random": {"first_head": "random"}, "statistics": {"first_head": "statistics"}},
    "fedlog-c": {"pull-0.1": {"alpha": 0.1, "beta": 0.001}, "pull-0.3": {"alpha": 0.3, "beta": 0.003}},
    "fedproto": {"lambda-1": {"regularisation": 1.0}, "lambda-10": {"regularisation": 10.0}},
    "feddbe": {"kappa-1": {"kappa": 1.0}, "kappa-50": {"kappa": 50.0}},
    "fedrep": {"head-epochs-1": {"head_epochs": 1}, "head-epochs-10": {"head_epochs": 10}},
    "cs-fl": {"step-0.001": {"phase_1_rate": 0.001}, "step-1": {"phase_1_rate": 1.0}},
}


def _rows(method: str, base: RunSpec) -> list[Row]:
    """Eight settings of the method."""
    own = OWN.get(method, {"": {}})
    rates = FEWER_RATES if method in OWN else RATES
    return [
        Row(
            "-".join(word for word in (method, name, optimiser, f"{rate:g}") if word),
            LABELS[method],
            replace(base, method=method, options={"learning_rate": rate, **options}, **settings),
        )
        for name, options in own.items()
        for optimiser, settings in OPTIMISERS.items()
        for rate in rates
    ]


def _grid(
    name: str, title: str, base: RunSpec, judged: str, seeds: tuple[int, ...], methods: tuple[str, ...] = METHODS
) -> Experiment:
    return Experiment(
        name=name,
        title=f"Eight settings of every method on {title}",
        shape=Shape.GRID,
        rows=tuple(row for method in methods for row in _rows(method, replace(base, rounds=ROUNDS))),
        seeds=seeds,
        remarks=(
            f"Judged on {judged}, on seeds that no table uses. What a method has no parameter for goes to more "
            "learning rates. Of equal settings the first is taken.",
        ),
    )


EQUAL_CHANCES = (
    _grid(
        "select-equal-chances-mnist",
        f"MNIST, {CLIENTS} clients with {RECORDS} records and 5 classes",
        RunSpec(
            data="mnist-selection",
            clients=CLIENTS,
            classes_per_client=5,
            train_records=CLIENTS * RECORDS,
            test_records=TEST_RECORDS,
        ),
        f"{TEST_RECORDS} training images that no table is made from",
        SEEDS,
    ),
    _grid(
        "select-equal-chances-wine",
        "wine in three unequal sites",
        RunSpec(data="wine", validation_fraction=0.3, judge=Judge.VALIDATION),
        "three tenths of each site's training rows",
        SEEDS[:1],
    ),
    _grid(
        "select-equal-chances-table-mnist",
        "MNIST with the clients of Table 1: 50 with 60 records and 2 classes",
        RunSpec(data="mnist-selection"),
        "10000 training images that no table is made from",
        SEEDS[:1],
        TABLE_METHODS,
    ),
)


def take_setting(spec: RunSpec, name: str) -> RunSpec:
    """The specification with the optimiser and the options of that row of the grids."""
    found = EQUAL_CHANCES[-1].row(name).spec  # which has the rows of all grids
    return replace(spec, moments=found.moments, decay=found.decay, options=found.options)
