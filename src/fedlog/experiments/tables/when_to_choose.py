"""Define the experiment `when-to-choose`: when to choose federated methods over training alone, in eight conditions.

Every method has the best of its eight settings in `select-equal-chances-mnist` and `-wine`. These were chosen on other
images, rows and seeds than those used here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedlog.experiments.tables.cells import Experiment, ExperimentKind, TableRow
from fedlog.experiments.tables.paper import LABELS
from fedlog.experiments.tables.tuning_grids import CLIENTS, GRID_MNIST, TEST_RECORDS, copy_setting
from fedlog.settings.spec import RunSpec

ROUNDS = 40
SHOWN_ROUNDS = (2, 5, 10, 30, ROUNDS)


@dataclass(frozen=True)
class Condition:
    """A data set and the way it is divided among clients: a name for folders, a title, and the settings."""

    name: str
    title: str
    spec: RunSpec

    def make_row_name(self, method: str) -> str:
        """Return the name of the method's row in this condition."""
        return f"{self.name}-{method}"


def _make_mnist_spec(records: int, classes: int | None, alpha: float | None = None) -> RunSpec:
    """Make settings that give each client this many MNIST records, of `classes` classes.

    With `alpha`, divide them by Dirichlet(`alpha`) instead; clients then have this many records on average.
    """
    return RunSpec(
        data="mnist",
        clients=CLIENTS,
        train_records=CLIENTS * records,
        test_records=TEST_RECORDS,
        partition="shards" if alpha is None else "dirichlet",
        classes_per_client=classes,
        dirichlet_alpha=alpha,
    )


CONDITIONS = (
    Condition("10-records", "10 records, 2 classes", _make_mnist_spec(10, 2)),
    Condition("20-records", "20 records, 2 classes", _make_mnist_spec(20, 2)),
    Condition("60-records", "60 records, 2 classes", _make_mnist_spec(60, 2)),
    Condition("5-classes", "20 records, 5 classes", _make_mnist_spec(20, 5)),
    Condition("dirichlet-0.1", "20 records, Dirichlet 0.1", _make_mnist_spec(20, None, 0.1)),
    Condition("dirichlet-0.5", "20 records, Dirichlet 0.5", _make_mnist_spec(20, None, 0.5)),
    Condition("wine", "wine, sites of 77, 38 and 19 rows", RunSpec(data="wine")),
    Condition("breast-cancer", "breast cancer, sites of 228 to 28 rows", RunSpec(data="breast-cancer")),
)


# Of each method, the row of its grid that was highest there, the first of equals.
SELECTED_MNIST = """
local-kept-0.002 fedlog-statistics-kept-0.001 fedlog-c-pull-0.1-kept-0.001 fedproto-lambda-1-kept-0.004
lg-fedavg-1-kept-0.002 fedavg-kept-0.008 feddbe-kappa-1-authors-0.004
"""
SELECTED_WINE = """
local-authors-0.001 fedlog-random-kept-0.001 fedlog-c-pull-0.1-authors-0.001 fedproto-lambda-1-authors-0.001
lg-fedavg-1-authors-0.001 fedavg-kept-0.001 feddbe-kappa-1-authors-0.001
"""


def _list_rows(condition: Condition) -> list[TableRow]:
    """Make the rows of the condition, one for each method."""
    selected = SELECTED_MNIST if condition.spec.data == "mnist" else SELECTED_WINE  # breast cancer has no grid
    # The grid of Table 1 has the rows of the grids on few MNIST records and on wine too.
    specs = [copy_setting(GRID_MNIST, row, replace(condition.spec, rounds=ROUNDS)) for row in selected.split()]
    return [
        TableRow(condition.make_row_name(spec.method), f"{condition.title}: {LABELS[spec.method]}", spec)
        for spec in specs
    ]


WHEN_TO_CHOOSE = Experiment(
    name="when-to-choose",
    title="When does exchanging pay? Few records, few classes, unequal sites",
    kind=ExperimentKind.CONDITIONS,
    rows=tuple(row for condition in CONDITIONS for row in _list_rows(condition)),
    seeds=(0, 1, 2, 3, 4),
    remarks=(
        f"MNIST: {CLIENTS} clients with the cnn of the paper, judged on the first {TEST_RECORDS} test images. The "
        "number of records is that of one client; with a Dirichlet distribution, on average.",
        "Wine and breast cancer (scikit-learn): each site has half as many rows as the one before. All sites are "
        "judged on the same quarter of the rows. The body is mlp:64,32.",
        f"All runs have {ROUNDS} rounds of 5 epochs. Every method has the highest of eight settings, chosen on other "
        "images and seeds (`select-equal-chances-mnist`) or on held-out training rows (`select-equal-chances-wine`, "
        "for wine and breast cancer).",
    ),
)
