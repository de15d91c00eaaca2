"""Grids with eight settings of every method: combinations of learning rate, optimiser and a parameter of the method.

Two grids are for clients with few records, for which methods differ most: on MNIST images that no table of results
uses, and on the wine data. Three are for every method of Table 1, on MNIST, CIFAR-10 and UCI HAR; `--recipe tuned` is
based on them. The best of a method's eight settings is then tried with three weight decays. Table 1 is run with every
method at the best of these eleven settings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedlog.experiments.tables.cells import Experiment, ExperimentKind, TableRow
from fedlog.experiments.tables.paper import LABELS, REFERENCE, TABLE_1, TEN_SEEDS
from fedlog.settings.presets import find_preset
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import AdamMoments, Decay, HeldOutRecords

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
RATES = (1, 2, 4, 8)  # times the rate of the data set's preset
FEWER_RATES = (1, 4)  # of a method that has a parameter of its own to choose
OWN_PARAMETERS: dict[str, dict[str, dict[str, Any]]] = {
    "fedlog": {"random": {"first_head": "random"}, "statistics": {"first_head": "statistics"}},
    "fedlog-c": {"pull-0.1": {"alpha": 0.1, "beta": 0.001}, "pull-0.3": {"alpha": 0.3, "beta": 0.003}},
    "fedproto": {"lambda-1": {"regularisation": 1.0}, "lambda-10": {"regularisation": 10.0}},
    "feddbe": {"kappa-1": {"kappa": 1.0}, "kappa-50": {"kappa": 50.0}},
    "fedrep": {"head-epochs-1": {"head_epochs": 1}, "head-epochs-10": {"head_epochs": 10}},
    "cs-fl": {"step-0.001": {"phase_1_rate": 0.001}, "step-1": {"phase_1_rate": 1.0}},
}


def _list_rows(method: str, base: RunSpec) -> list[TableRow]:
    """Make one row of a grid for each of the method's eight settings; `base` has the settings that all rows share."""
    own = OWN_PARAMETERS.get(method, {"": {}})
    rates = [
        times * find_preset(base.data).learning_rate for times in (FEWER_RATES if method in OWN_PARAMETERS else RATES)
    ]
    return [
        TableRow(
            "-".join(word for word in (method, name, optimiser, f"{rate:g}") if word),
            LABELS[method],
            replace(base, method=method, options={"learning_rate": rate, **options}, **settings),
        )
        for name, options in own.items()
        for optimiser, settings in OPTIMISERS.items()
        for rate in rates
    ]


def _make_grid(
    name: str, title: str, base: RunSpec, judged: str, seeds: tuple[int, ...], methods: tuple[str, ...] = METHODS
) -> Experiment:
    """Make a grid with eight settings of each method; `judged` says on which records accuracies are measured."""
    rounds = base.rounds or ROUNDS
    return Experiment(
        name=name,
        title=f"Eight settings of every method on {title}",
        kind=ExperimentKind.GRID,
        rows=tuple(row for method in methods for row in _list_rows(method, replace(base, rounds=rounds))),
        seeds=seeds,
        remarks=(
            f"{rounds} rounds. Judged on {judged}, on seeds that no table uses.",
            "A method without a parameter of its own tries more learning rates instead. Of equal settings the first is "
            "taken.",
        ),
    )


_VALIDATION: dict[str, Any] = {"validation_fraction": 0.2, "judge": HeldOutRecords.VALIDATION}
GRID_MNIST = _make_grid(
    "select-equal-chances-table-mnist",
    "MNIST with the clients of Table 1: 50 with 60 records and 2 classes",
    RunSpec(data="mnist-selection"),
    "10000 training images that no table is made from",
    SEEDS[:1],
    TABLE_METHODS,
)
# A fifth of the table's clients, each with as many records as there: a grid of the whole table would take a day.
GRID_CIFAR10 = _make_grid(
    "select-equal-chances-table-cifar10",
    "CIFAR-10 with clients as in Table 1, but 20 of them: 500 records and 2 classes each",
    RunSpec(data="cifar10", clients=20, train_records=10_000, rounds=20, **_VALIDATION),
    "a fifth of each client's training records",
    SEEDS[:1],
    TABLE_METHODS,
)
GRID_HAR = _make_grid(
    "select-equal-chances-har",
    "UCI HAR in six sites of people",
    RunSpec(data="har", rounds=20, **_VALIDATION),
    "people of each site who are held out of the training records",
    SEEDS,  # six sites a seed decide little
    TABLE_METHODS,
)

EQUAL_CHANCES = (
    _make_grid(
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
    _make_grid(
        "select-equal-chances-wine",
        "wine in three unequal sites",
        RunSpec(data="wine", validation_fraction=0.3, judge=HeldOutRecords.VALIDATION),
        "three tenths of each site's training rows",
        SEEDS[:1],
    ),
    GRID_MNIST,
    GRID_CIFAR10,
    GRID_HAR,
)

RECIPE_GRIDS = (GRID_MNIST, GRID_CIFAR10, GRID_HAR)  # their rows stand in the same order


def list_rows_of_method(method: str, grid: Experiment) -> list[TableRow]:
    """Return the grid's rows with the eight settings of the method; the order of settings is the same in every grid."""
    return [row for row in grid.rows if row.spec.method == method]


def copy_setting(grid: Experiment, row: str, spec: RunSpec) -> RunSpec:
    """Return a copy of the specification with the method, optimiser and options of this row of the grid."""
    found = grid.find_row(row).spec
    return replace(
        spec,
        method=found.method,
        moments=found.moments,
        decay=found.decay,
        weight_decay=found.weight_decay,
        options=found.options,
    )


# Of each method, the row of its grid that was highest there, the first of equals.
HIGHEST_MNIST = """
fedavg-kept-0.008 lg-fedavg-1-kept-0.008 lg-fedavg-2-kept-0.004 fedper-kept-0.008
fedrep-head-epochs-1-kept-0.004 cs-fl-step-1-kept-0.004 fedbabu-kept-0.008 fedproto-lambda-1-kept-0.004
feddbe-kappa-1-kept-0.004 fedlog-random-kept-0.004 fedlog-c-pull-0.3-kept-0.004 local-kept-0.008
"""
HIGHEST_CIFAR10 = """
fedavg-kept-0.004 lg-fedavg-1-authors-0.004 lg-fedavg-2-authors-0.004 fedper-kept-0.004
fedrep-head-epochs-10-kept-0.002 cs-fl-step-1-kept-0.002 fedbabu-kept-0.004 fedproto-lambda-10-authors-0.002
feddbe-kappa-1-authors-0.002 fedlog-random-kept-0.002 fedlog-c-pull-0.3-kept-0.002 local-authors-0.002
"""
HIGHEST_HAR = """
fedavg-kept-0.004 lg-fedavg-1-kept-0.008 lg-fedavg-2-kept-0.008 fedper-authors-0.004
fedrep-head-epochs-10-kept-0.004 cs-fl-step-1-kept-0.004 fedbabu-kept-0.004 fedproto-lambda-10-authors-0.001
feddbe-kappa-1-kept-0.004 fedlog-statistics-kept-0.001 fedlog-c-pull-0.1-authors-0.001 local-kept-0.008
"""
WEIGHT_DECAYS = (0.1, 0.3, 1.0)


def _make_weight_decay_grid(grid: Experiment, highest_rows: str) -> Experiment:
    """Make a grid of each method's best row of `grid` (in `highest_rows`), without and with the `WEIGHT_DECAYS`."""
    rows = [
        replace(row, name=f"{name}-weight-decay-{decay:g}", spec=replace(row.spec, weight_decay=decay))
        if decay
        else row
        for name in highest_rows.split()
        for row in [grid.find_row(name)]
        for decay in (0.0, *WEIGHT_DECAYS)
    ]
    _, judged = grid.title.split(" on ", 1)
    return replace(
        grid,
        name=grid.name.replace("equal-chances", "weight-decay"),
        title=f"Weight decay of every method on {judged}",
        rows=tuple(rows),
        remarks=(grid.remarks[0], f"Each method has its highest setting of `{grid.name}`."),
    )


DECAY_MNIST = _make_weight_decay_grid(GRID_MNIST, HIGHEST_MNIST)
DECAY_CIFAR10 = _make_weight_decay_grid(GRID_CIFAR10, HIGHEST_CIFAR10)
DECAY_HAR = _make_weight_decay_grid(GRID_HAR, HIGHEST_HAR)
WEIGHT_DECAY_GRIDS = (DECAY_MNIST, DECAY_CIFAR10, DECAY_HAR)

# Of each method, the row of its weight decay grid that was highest there, the first of equals.
SELECTED_MNIST = """
fedavg-kept-0.008-weight-decay-0.1 lg-fedavg-1-kept-0.008 lg-fedavg-2-kept-0.004 fedper-kept-0.008-weight-decay-0.3
fedrep-head-epochs-1-kept-0.004-weight-decay-0.3 cs-fl-step-1-kept-0.004 fedbabu-kept-0.008
fedproto-lambda-1-kept-0.004 feddbe-kappa-1-kept-0.004 fedlog-random-kept-0.004-weight-decay-1
fedlog-c-pull-0.3-kept-0.004 local-kept-0.008-weight-decay-0.1
"""
SELECTED_CIFAR10 = """
fedavg-kept-0.004 lg-fedavg-1-authors-0.004 lg-fedavg-2-authors-0.004-weight-decay-0.1
fedper-kept-0.004-weight-decay-0.1 fedrep-head-epochs-10-kept-0.002-weight-decay-0.1 cs-fl-step-1-kept-0.002
fedbabu-kept-0.004-weight-decay-0.1 fedproto-lambda-10-authors-0.002-weight-decay-0.1
feddbe-kappa-1-authors-0.002 fedlog-random-kept-0.002-weight-decay-0.1 fedlog-c-pull-0.3-kept-0.002
local-authors-0.002
"""


def make_tuned_table(grid: Experiment, selected_rows: str, seeds: tuple[int, ...]) -> Experiment:
    """Make Table 1 on the grid's data set, with the settings of the grid's `selected_rows`, one for each method."""
    data = grid.data[0].removesuffix("-selection")
    specs = [copy_setting(grid, row, RunSpec(data=data, rounds=ROUNDS)) for row in selected_rows.split()]
    return Experiment(
        name=f"table-tuned-{data}",
        title=f"Table 1, {TABLE_1[data].title}, every method at the highest of its eleven settings, {ROUNDS} rounds",
        kind=ExperimentKind.TUNED,
        rows=tuple(TableRow(spec.method, LABELS[spec.method], spec) for spec in specs),
        seeds=seeds,
        reference=REFERENCE,
        remarks=(
            f"The settings are the highest of eight in `{grid.name.replace('weight-decay', 'equal-chances')}`, then of "
            f"four weight decays in `{grid.name}`, on no test record and no seed of this table.",
            f"Beside them: the paper's settings after {ROUNDS} rounds, from the records of `table-{data}`. With a "
            "level rate, a run's first rounds do not depend on how many follow.",
        ),
    )


TUNED_TABLES = (
    make_tuned_table(DECAY_MNIST, SELECTED_MNIST, TEN_SEEDS),
    make_tuned_table(DECAY_CIFAR10, SELECTED_CIFAR10, (0, 1, 2)),
)
