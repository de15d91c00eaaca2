"""Public tables that come with scikit-learn, divided among sites of unequal size; for regression or classification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.data.schema import Feature, FeatureKind, Schema
from fedlog.data.site import make_site_with_split
from fedlog.data.sites import join_sites
from fedlog.data.split import Split
from fedlog.data.tables import check_table
from fedlog.errors import InputError

TEST_SHARE = 0.25
Columns = dict[str, NDArray[Any]]
Ranges = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class PublicTable:
    """A public table: how to read it, the column to predict, and the ranges and classes that sites agree on."""

    read: Callable[[], Columns]
    target: str
    ranges: Ranges
    classes: tuple[str, ...] = ()  # empty: the target is a number

    @property
    def schema(self) -> Schema:
        """The schema that the sites agree on."""
        features = (
            Feature(name, FeatureKind.NUMERIC, range=ends) for name, ends in self.ranges.items() if name != self.target
        )
        target_range = None if self.classes else self.ranges[self.target]
        return Schema(self.target, self.classes or (self.target,), tuple(features), target_range=target_range)


def _read_diabetes() -> Columns:
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    names = ("age", "sex", "bmi", "bp", "tc", "ldl", "hdl", "tch", "ltg", "glu")
    return {**dict(zip(names, found.data.T, strict=True)), "progression": found.target}


def _read_wine() -> Columns:
    from sklearn.datasets import load_wine

    found = load_wine()
    return {**dict(zip(found.feature_names, found.data.T, strict=True)), "cultivar": found.target + 1}


NUMBER_TABLES = {
    "diabetes": PublicTable(
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
    "wine-alcohol": PublicTable(
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


def _read_breast_cancer() -> Columns:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    names = found.feature_names.tolist()
    return {**dict(zip(names, found.data.T, strict=True)), "tumour": found.target_names[found.target]}


# Ranges of ten measures of cell nuclei: for a picture's mean, its standard error and its worst cells.
_NUCLEI = {
    "radius": ((5.0, 30.0), (0.0, 3.0), (5.0, 40.0)),
    "texture": ((5.0, 40.0), (0.0, 5.0), (10.0, 50.0)),
    "perimeter": ((40.0, 200.0), (0.0, 25.0), (50.0, 260.0)),
    "area": ((100.0, 2500.0), (0.0, 600.0), (100.0, 4500.0)),
    "smoothness": ((0.05, 0.2), (0.0, 0.03), (0.05, 0.25)),
    "compactness": ((0.0, 0.4), (0.0, 0.15), (0.0, 1.2)),
    "concavity": ((0.0, 0.5), (0.0, 0.4), (0.0, 1.5)),
    "concave points": ((0.0, 0.25), (0.0, 0.06), (0.0, 0.3)),
    "symmetry": ((0.1, 0.3), (0.0, 0.08), (0.1, 0.7)),
    "fractal dimension": ((0.04, 0.1), (0.0, 0.03), (0.05, 0.2)),
}
_NUCLEUS_RANGES = {
    name: ends
    for measure, (mean, error, worst) in _NUCLEI.items()
    for name, ends in ((f"mean {measure}", mean), (f"{measure} error", error), (f"worst {measure}", worst))
}
CLASS_TABLES = {
    "wine": PublicTable(_read_wine, "cultivar", NUMBER_TABLES["wine-alcohol"].ranges, ("1", "2", "3")),
    "breast-cancer": PublicTable(_read_breast_cancer, "tumour", _NUCLEUS_RANGES, ("malignant", "benign")),
}


def divide_public_table(name: str, clients: int, key: Key) -> Federation:
    """Divide a public table among sites; each site has half as many training rows as the site before.

    A quarter of all rows are test rows, which all sites share. The test rows and the rows of each site are drawn at
    random from the key.
    """
    found = NUMBER_TABLES[name] if name in NUMBER_TABLES else CLASS_TABLES[name]
    frame, schema = pl.DataFrame(found.read()), found.schema
    order = key.child("rows").numpy().permutation(frame.height)
    test, train = np.split(order, [round(TEST_SHARE * len(order))])
    shares = np.cumsum(2.0 ** -np.arange(clients))
    cuts = np.round(shares[:-1] / shares[-1] * len(train)).astype(int)
    parts = np.split(train, cuts)
    if min(len(part) for part in parts) < 2:
        raise InputError(
            f"data set {name}: {len(train)} training rows are too few for {clients} sites, each half as large as the "
            "one before",
            hint="use fewer clients",
        )
    sites = []
    for at, part in enumerate(parts):
        rows = np.concatenate([np.sort(part), np.sort(test)])
        split = Split(np.arange(len(part)), np.arange(0), np.arange(len(part), len(rows)))
        sites.append(make_site_with_split(check_table(frame[rows], schema, name), schema, f"site-{at}", split))
    joined = join_sites(sites, schema, name)
    # Rows are numbered as in the whole table, because each seed gives a site other rows. All sites share the test rows.
    train_rows = np.concatenate([np.sort(part) for part in parts])
    test_rows = -1 - np.tile(np.sort(test), clients)
    return replace(
        joined,
        train=replace(joined.train, rows=torch.from_numpy(train_rows)),
        test=replace(joined.test, rows=torch.from_numpy(test_rows)),
        rows_alone=True,  # ranges are constants, so the scaling of a row does not depend on other rows
    )
