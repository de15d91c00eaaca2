"""When does federating pay? Several methods and training alone with few records, in eight conditions.

Every method has the best of its eight settings in `select-equal-chances-mnist` and `-wine`. These were chosen on other
images, rows and seeds than those used here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedlog.experiments.tables.cells import Experiment, Row, Shape
from fedlog.experiments.tables.equal_chances import CLIENTS, GRID_MNIST, METHODS, TEST_RECORDS, copy_setting
from fedlog.experiments.tables.paper import LABELS
from fedlog.settings.spec import RunSpec

ROUNDS = 40
SHOWN_ROUNDS = (2, 5, 10, 30, ROUNDS)
NAME = "when-to-choose"


@dataclass(frozen=True)
class Condition:
    """One way to divide records among clients: a name for folders, a title, and the settings of the data."""

    name: str
    title: str
    spec: RunSpec

    def row_name(self, method: str) -> str:
        """The name of the row with this condition and method."""
        return f"{self.name}-{method}"


def _divide_mnist(records: int, classes: int | None, alpha: float | None = None) -> RunSpec:
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
    Condition("10-records", "10 records, 2 classes", _divide_mnist(10, 2)),
    Condition("20-records", "20 records, 2 classes", _divide_mnist(20, 2)),
    Condition("60-records", "60 records, 2 classes", _divide_mnist(60, 2)),
    Condition("5-classes", "20 records, 5 classes", _divide_mnist(20, 5)),
    Condition("dirichlet-0.1", "20 records, Dirichlet 0.1", _divide_mnist(20, None, 0.1)),
    Condition("dirichlet-0.5", "20 records, Dirichlet 0.5", _divide_mnist(20, None, 0.5)),
    Condition("wine", "wine, sites of 77, 38 and 19 rows", RunSpec(data="wine")),
    Condition("breast-cancer", "breast cancer, sites of 228, 114, 57 and 28 rows", RunSpec(data="breast-cancer")),
)


# Method -> the row of its grid that was highest there, the first of equals.
SELECTED: dict[str, dict[str, str]] = {
    "mnist": {
        "local": "local-kept-0.002",
        "fedlog": "fedlog-statistics-kept-0.001",
        "fedlog-c": "fedlog-c-pull-0.1-kept-0.001",
        "fedproto": "fedproto-lambda-1-kept-0.004",
        "lg-fedavg-1": "lg-fedavg-1-kept-0.002",
        "fedavg": "fedavg-kept-0.008",
        "feddbe": "feddbe-kappa-1-authors-0.004",
    },
    "wine": {
        "local": "local-authors-0.001",
        "fedlog": "fedlog-random-kept-0.001",
        "fedlog-c": "fedlog-c-pull-0.1-authors-0.001",
        "fedproto": "fedproto-lambda-1-authors-0.001",
        "lg-fedavg-1": "lg-fedavg-1-authors-0.001",
        "fedavg": "fedavg-kept-0.001",
        "feddbe": "feddbe-kappa-1-authors-0.001",
    },
}
SELECTED_ON = {"breast-cancer": "wine"}  # data without a grid of their own


def _make_row(condition: Condition, method: str) -> Row:
    data = condition.spec.data
    chosen = SELECTED[SELECTED_ON.get(data, data)][method]
    # The grid of Table 1 has the rows of the grids on few MNIST records and on wine too.
    spec = copy_setting(GRID_MNIST, chosen, replace(condition.spec, method=method, rounds=ROUNDS))
    return Row(condition.row_name(method), f"{condition.title}: {LABELS[method]}", spec)


WHEN_TO_CHOOSE = Experiment(
    name=NAME,
    title="When does exchanging pay? Few records, few classes, unequal sites",
    shape=Shape.CONDITIONS,
    rows=tuple(_make_row(condition, method) for condition in CONDITIONS for method in METHODS),
    seeds=(0, 1, 2, 3, 4),
    remarks=(
        f"MNIST: {CLIENTS} clients with the cnn of the paper, judged on the first {TEST_RECORDS} test images; records "
        "are those of one client, on average where they are dealt by a Dirichlet distribution. Wine and breast cancer "
        "(scikit-learn): a site has half as many rows as the one before, all are judged on the same quarter of the "
        f"rows; mlp:64,32. {ROUNDS} rounds of 5 epochs. Every method has the highest of eight settings, "
        "chosen on other images and seeds (`select-equal-chances-mnist`; for both tables `select-equal-chances-wine`, "
        "on held-out training rows).",
    ),
)
