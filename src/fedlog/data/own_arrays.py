"""Make a federation from arrays, tensors or data frames in memory, encoded as in a deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.data.arrays import Arrays, check_targets
from fedlog.data.draft import draft_features, sort_naturally
from fedlog.data.federation import Federation
from fedlog.data.schema import Feature, FeatureKind, Schema, check_range, check_schema
from fedlog.data.site import (
    Preparation,
    Site,
    make_site,
    site_with_split,
    split_key,
    split_rows,
)
from fedlog.data.sites import join_sites
from fedlog.data.split import Shares, Split
from fedlog.data.tables import Table, check_features
from fedlog.errors import InputError, errors_in

Inputs = NDArray[Any] | pl.DataFrame
NUMBER = "number"  # the name of the only class if a number is predicted

PAIRS = 'Federation.from_arrays({"north": (X, y), "south": (X, y)})'


@dataclass(frozen=True, eq=False)
class Part:
    """The training records, or the test records, of one site."""

    inputs: Inputs
    labels: NDArray[Any]
    groups: NDArray[Any] | None
    where: str

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ArrayPreparation:
    """How the rows of arrays are split and scaled; see `Federation.from_arrays`."""

    validation: float | None = None
    split_seed: int = 0
    rows_alone: bool = False
    number: tuple[float, float] | None = None

    @property
    def preparation(self) -> Preparation:
        """The same as a site's `Preparation`."""
        return Preparation.ALONE if self.rows_alone else Preparation.TOGETHER


def federation_from_arrays(
    train: Mapping[str, Sequence[Any]],
    test: Mapping[str, Sequence[Any]] | Sequence[Any] | float | None,
    class_names: Sequence[str] | None,
    how: ArrayPreparation,
    name: str,
) -> Federation:
    """The federation that `Federation.from_arrays` describes."""
    if not isinstance(train, Mapping) or not train:
        raise InputError(
            f"expected a dict with the records of each site by name, found: {type(train).__name__}",
            hint=PAIRS,
        )
    parts = {site: _read_part(given, f"site {site}") for site, given in sorted(train.items())}
    tests = _read_tests(test, tuple(parts))
    both = [*parts.values(), *tests.values()]
    if how.number is None:
        classes = _Classes.from_labels([part.labels for part in both], class_names)
    else:
        classes = _Classes((NUMBER,), ())
    schema, notes = _make_schema([part.inputs for part in both], classes.names, how.number)
    if tests and how.rows_alone:
        raise InputError(
            "test records cannot be given with rows_alone, which chooses test rows by a hash of each row",
            hint="leave out test, or rows_alone",
        )
    held_out: dict[str, Part | Shares] = {**tests}
    if not tests:
        validation = 0.2 if how.validation is None else how.validation
        share = float(test) if isinstance(test, int | float) else 0.2
        held_out = dict.fromkeys(parts, Shares(validation, share, how.split_seed))
    sites = []
    for site, part in parts.items():
        with errors_in(part.where):
            sites.append(_make_site(site, part, held_out[site], classes, schema, how))
    joined = join_sites(sites, schema, name)
    joined = replace(joined, labels=classes.numbers, notes=notes, rows_alone=how.rows_alone)
    if tests:
        return joined  # the test rows are those that were given

    def split_again(seed: int) -> Federation:
        return federation_from_arrays(train, test, class_names, replace(how, split_seed=seed), name)

    return replace(joined, split_again=split_again)


def read_inputs(values: Any, where: str) -> Inputs:
    """The array, tensor or data frame converted to a numpy array or a polars data frame."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if isinstance(values, pl.DataFrame):
        return values
    if hasattr(values, "columns") and hasattr(values, "iloc"):  # a pandas data frame, without importing pandas
        return pl.DataFrame([_to_series(str(column), values[column].to_numpy()) for column in values.columns])
    array = np.asarray(values)
    if array.ndim < 2 or array.dtype.kind not in "fiub":
        raise InputError(
            f"{where}: expected an array of numbers with one record a row, found {array.dtype} {array.shape}",
            hint="use X[None] for a single record, X[:, None] for a single column"
            if array.ndim < 2
            else "use a pandas or polars data frame for texts",
        )
    return array


def table_columns(inputs: Inputs, schema: Schema, where: str) -> dict[str, pl.Series]:
    """The schema's columns of a data frame, or of an array with its columns in the schema's order."""
    frame = inputs
    if not isinstance(frame, pl.DataFrame):
        if frame.ndim != 2 or frame.shape[1] != len(schema.features):
            raise InputError(
                f"{where}: expected records of {len(schema.features)} columns, found an array of shape {frame.shape}",
                hint="give one record a row, with the same columns in the same order as the training records",
            )
        names = [feature.column for feature in schema.features]
        frame = pl.DataFrame([pl.Series(name, frame[:, at].astype(np.float64)) for at, name in enumerate(names)])
    return check_features(frame, schema, where)


def _to_series(name: str, values: NDArray[Any]) -> pl.Series:
    if values.dtype.kind in "fiub":
        return pl.Series(name, values)
    if values.dtype.kind == "M":
        return pl.Series(name, values.astype("datetime64[us]"))
    return pl.Series(name, [None if _is_gap(value) else str(value) for value in values], dtype=pl.String)


def _is_gap(value: Any) -> bool:
    # pandas has three kinds of missing values, and its NA cannot be compared with itself.
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and isnan(value))


def _read_part(given: Sequence[Any], where: str) -> Part:
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        raise InputError(f"{where}: expected (X, y) or (X, y, groups), found: {type(given).__name__}", hint=PAIRS)
    inputs, labels = read_inputs(given[0], where), _read_column(given[1])
    groups = _read_column(given[2]) if len(given) == 3 else None
    if labels.ndim != 1 or len(labels) != len(inputs) or len(labels) == 0:
        if not len(inputs):
            raise InputError(f"{where}: expected records, found none", hint="leave out a site without records")
        raise InputError(
            f"{where}: expected a label for each of {len(inputs)} records, found: {labels.shape}",
            hint="y needs one label for each row of X",
        )
    if groups is not None and groups.shape != labels.shape:
        raise InputError(
            f"{where}: expected a group for each of {len(inputs)} records, found: {groups.shape}",
            hint="groups needs one entry for each row of X",
        )
    return Part(inputs, labels, groups, where)


def _read_column(values: Any) -> NDArray[Any]:
    array: NDArray[Any] = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind in "OT":
        array = np.array([value if isinstance(value, int) else str(value) for value in array.tolist()])
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def _read_tests(test: Any, sites: tuple[str, ...]) -> dict[str, Part]:
    """The test records of each site; none if a share of its rows is to be held out."""
    if test is None or isinstance(test, int | float):
        return {}
    if not isinstance(test, Mapping):
        common = _read_part(test, "the common test records")
        return dict.fromkeys(sites, common)
    if set(test) != set(sites):
        raise InputError(
            f"expected test records of the sites {', '.join(sites)}, found those of: {', '.join(sorted(test))}",
            hint="give test records for the same sites as in train, one (X, y) for all, or a share such as 0.2",
        )
    return {site: _read_part(test[site], f"site {site}, test records") for site in sites}


@dataclass(frozen=True)
class _Classes:
    """The classes of the federation: their names and, if labels are whole numbers, the number of each class."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]

    @classmethod
    def from_labels(cls, labels: Sequence[NDArray[Any]], names: Sequence[str] | None) -> _Classes:
        """The classes in these labels, or those with the given names."""
        kinds = {
            "number" if array.dtype.kind in "iu" else "text" if array.dtype.kind == "U" else "" for array in labels
        }
        if len(kinds) > 1 or "" in kinds:
            found = ", ".join(sorted({str(array.dtype) for array in labels}))
            raise InputError(
                f"expected labels that are all whole numbers or all texts, found: {found}",
                hint="drop rows without a label, and use y.astype(int) if numbers stand for classes",
            )
        values = np.unique(np.concatenate(list(labels))).tolist()
        if names is None:
            return (
                cls(tuple(map(str, values)), tuple(values))
                if kinds == {"number"}
                else cls(tuple(sort_naturally(values)), ())
            )
        given = tuple(str(name) for name in names)
        return cls(given, tuple(range(len(given))) if kinds == {"number"} else ())

    def codes(self, labels: NDArray[Any], where: str) -> NDArray[np.int64]:
        """The position of each label's class; InputError for a label that is no class."""
        place: dict[Any, int] = {value: code for code, value in enumerate(self.numbers or self.names)}
        codes = np.array([place.get(label, -1) for label in labels.tolist()], dtype=np.int64)
        if (codes < 0).any():
            row = int(np.flatnonzero(codes < 0)[0])
            expected = f"from 0 to {len(self.names) - 1}" if self.numbers else f"among {', '.join(self.names)}"
            raise InputError(
                f"{where}: expected labels {expected}, found in row {row + 1}: {labels[row]}",
                hint="class_names needs a name for every class",
            )
        return codes


def _make_schema(
    inputs: Sequence[Inputs], names: tuple[str, ...], number: tuple[float, float] | None
) -> tuple[Schema, tuple[str, ...]]:
    where = "the records of the sites"
    drafted, notes = _draft_schema(inputs, names, where)
    if number is not None:
        column = drafted.label_column
        drafted = replace(drafted, label_values=(column,), number=check_range(number, "the call"))
    return check_schema(drafted, where), notes


def _draft_schema(inputs: Sequence[Inputs], names: tuple[str, ...], where: str) -> tuple[Schema, tuple[str, ...]]:
    frames = [part for part in inputs if isinstance(part, pl.DataFrame)]
    if frames and len(frames) < len(inputs):
        raise InputError(
            "expected arrays at every site, or data frames at every site; found both",
            hint="make data frames of the arrays, with the same columns",
        )
    if frames:
        columns = frames[0].columns
        if any(set(frame.columns) != set(columns) for frame in frames):
            differ = sorted({each for frame in frames for each in set(frame.columns) ^ set(columns)})
            raise InputError(
                f"expected data frames with the same columns at every site, found only at some: {', '.join(differ)}",
                hint="give every site the same columns",
            )
        features, notes = draft_features(pl.concat([frame.select(columns) for frame in frames], how="vertical_relaxed"))
        return Schema(_find_free_name(columns), names, features), notes
    shapes = {part.shape[1:] for part in inputs if not isinstance(part, pl.DataFrame)}
    if len(shapes) > 1:
        raise InputError(
            f"expected records of one shape at every site, found: {', '.join(map(str, sorted(shapes)))}",
            hint="give X the same columns at every site",
        )
    (shape,) = shapes
    if len(shape) > 1:
        return Schema("label", names, input_shape=shape), ()
    columns = [f"x{at}" for at in range(shape[0])]
    return Schema("label", names, tuple(Feature(column, FeatureKind.NUMERIC) for column in columns)), ()


def _find_free_name(columns: Sequence[str]) -> str:
    # The labels are not in the table, so their name must differ from those of its columns.
    return next(name for name in ("label", "label_", "label__") if name not in columns)


def _make_site(
    name: str, part: Part, test: Part | Shares, classes: _Classes, schema: Schema, how: ArrayPreparation
) -> Site:
    """The site with these records; `test` are its test records, or the shares of `part` to hold out."""
    codes, targets = _read_labels([part], classes, how)
    names: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None
    if part.groups is not None:
        found, places = np.unique(part.groups, return_inverse=True)
        names, groups = tuple(str(each) for each in found.tolist()), places.astype(np.int64)
    if isinstance(test, Shares):
        data = _join_parts([part], schema, codes, targets, groups, names)
        return make_site(data, schema, name, split_key(name), test, how.preparation)
    split = _split_with_given_test(codes, groups, len(test), how.validation or 0.0, split_key(name, how.split_seed))
    codes, targets = _read_labels([part, test], classes, how)
    return site_with_split(_join_parts([part, test], schema, codes, targets), schema, name, split)


def _join_parts(
    parts: Sequence[Part],
    schema: Schema,
    codes: NDArray[np.int64],
    targets: NDArray[np.float32] | None,
    groups: NDArray[np.int64] | None = None,
    names: tuple[str, ...] = (),
) -> Table | Arrays:
    """The rows of these parts, one after the other: a table if the schema has features, else arrays."""
    if not schema.features:
        raw = np.concatenate([np.asarray(part.inputs) for part in parts])
        inputs = torch.from_numpy(np.ascontiguousarray(raw if raw.dtype == np.uint8 else raw.astype(np.float32)))
        return Arrays(inputs, codes, groups, names, targets)
    columns = [table_columns(part.inputs, schema, part.where) for part in parts]
    joined = {column: pl.concat([found[column] for found in columns]) for column in columns[0]}
    return Table(joined, codes, groups, names, None, targets)


def _read_labels(
    parts: Sequence[Part], classes: _Classes, how: ArrayPreparation
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
    """The class of each record; if a number is predicted, class 0 and the scaled numbers."""
    if how.number is None:
        return np.concatenate([classes.codes(part.labels, part.where) for part in parts]), None
    targets = np.concatenate([check_targets(part.labels, how.number, part.where) for part in parts])
    return np.zeros(len(targets), dtype=np.int64), targets


def _split_with_given_test(
    codes: NDArray[np.int64], groups: NDArray[np.int64] | None, n_test: int, validation: float, key: Any
) -> Split:
    """The split if test records are given: they come after the other rows, of which a share is for validation."""
    rows, test = np.arange(len(codes)), np.arange(len(codes), len(codes) + n_test)
    if validation == 0:
        return Split(rows, np.arange(0), test)
    # `split_rows` always holds out two parts: each gets half of the share, and both together are for validation.
    halves = split_rows(codes, groups, None, Shares(validation / 2, validation / 2), key)
    return Split(halves.train, np.sort(np.concatenate([halves.validation, halves.test])), test)
