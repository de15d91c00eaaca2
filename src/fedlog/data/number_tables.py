"""Two real tables with a number to predict that come with scikit-learn, in unequal sites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.data.numbers import scale_targets
from fedlog.data.schema import Feature, FeatureKind, Schema
from fedlog.data.site import site_of_table
from fedlog.data.sites import join_sites
from fedlog.data.split import Split
from fedlog.data.tables import Table, check_features
from fedlog.errors import InputError

TEST_SHARE = 0.25
Columns = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class NumberTable:
    """A table: how to read it, the number to predict, and the round ranges that stand for common knowledge."""

    read: Callable[[], Columns]
    target: str
    ranges: dict[str, tuple[float, float]]

    @property
    def schema(self) -> Schema:
        """What the sites agree on."""
        features = [
            Feature(column, FeatureKind.NUMERIC, range=ends)
            for column, ends in self.ranges.items()
            if column != self.target
        ]
        return Schema(self.target, (self.target,), tuple(features), number=self.ranges[self.target])


def _read_diabetes() -> Columns:
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    names = ("age", "sex", "bmi", "bp", "tc", "ldl", "hdl", "tch", "ltg", "glu")
    return {**dict(zip(names, found.data.T, strict=True)), "progression": found.target}


def _read_wine() -> Columns:
    from sklearn.datasets import load_wine

    found = load_wine()
    return dict(zip(found.feature_names, found.data.T, strict=True))


NUMBER_TABLES = {
    "diabetes": NumberTable(
        _read_diabetes,
        "progression",
        {
            "age": (0.0, 100.0),
            "sex": (1.0, 2.0),
            "bmi": (15.0, 45.0),
            "bp": (50.0, 150.0),
            "tc": (50.0, 350.0),
            "ldl": (0.0, 300.0),
            "hdl": (0.0, 100.0),
            "tch": (0.0, 10.0),
            "ltg": (2.0, 7.0),
            "glu": (50.0, 150.0),
            "progression": (0.0, 350.0),
        },
    ),
    "wine-alcohol": NumberTable(
        _read_wine,
        "alcohol",
        {
            "alcohol": (10.0, 16.0),
            "malic_acid": (0.0, 6.0),
            "ash": (1.0, 4.0),
            "alcalinity_of_ash": (10.0, 30.0),
            "magnesium": (60.0, 180.0),
            "total_phenols": (0.0, 5.0),
            "flavanoids": (0.0, 6.0),
            "nonflavanoid_phenols": (0.0, 1.0),
            "proanthocyanins": (0.0, 4.0),
            "color_intensity": (0.0, 15.0),
            "hue": (0.0, 2.0),
            "od280/od315_of_diluted_wines": (1.0, 5.0),
            "proline": (0.0, 2000.0),
        },
    ),
}


def read_number_table(name: str, clients: int, key: Key) -> Federation:
    """The table in sites of which each has half as many rows as the one before; all are judged on the same test rows.

    A quarter of the rows are for testing; they and the sites' rows are drawn from the key.
    """
    found = NUMBER_TABLES[name]
    columns, schema = found.read(), found.schema
    order = key.child("rows").numpy().permutation(len(columns[found.target]))
    test, train = np.split(order, [round(TEST_SHARE * len(order))])
    shares = np.cumsum(2.0 ** -np.arange(clients))
    cuts = np.round(shares[:-1] / shares[-1] * len(train)).astype(int)
    parts = np.split(train, cuts)
    if min(len(part) for part in parts) < 2:
        raise InputError(
            f"data set {name}: {len(train)} training rows are too few for {clients} sites, each half of the last"
        )
    sites = []
    for at, part in enumerate(parts):
        rows = np.concatenate([np.sort(part), np.sort(test)])
        frame = pl.DataFrame({column: values[rows] for column, values in columns.items()})
        targets = scale_targets(columns[found.target][rows], found.ranges[found.target])
        table = Table(check_features(frame, schema, name), np.zeros(len(rows), np.int64), None, (), None, targets)
        split = Split(np.arange(len(part)), np.arange(0), np.arange(len(part), len(rows)))
        sites.append(site_of_table(table, schema, f"site-{at}", split))
    # Ranges are constants, so no row is scaled by another.
    return replace(join_sites(sites, schema, name), rows_alone=True)
