"""Make a federation from arrays, tensors or data frames in memory, encoded as in a deployment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from numbers import Integral
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.data.arrays import Arrays, convert_labels_to_targets, to_tensor
from fedlog.data.federation import Federation
from fedlog.data.rows import find_codes, find_group_codes
from fedlog.data.schema import Feature, FeatureKind, Schema, check_range, check_schema
from fedlog.data.schema_draft import SCHEMA_FROM_ROWS, draft_features, sort_naturally
from fedlog.data.site import RowPreparation, Site, make_site, make_site_with_split, make_split_key, split_rows
from fedlog.data.sites import join_sites
from fedlog.data.split import HeldOutShares, Split
from fedlog.data.tables import Table, select_features
from fedlog.errors import InputError, prefix_errors

Inputs = NDArray[Any] | pl.DataFrame

EXAMPLE = 'Federation.from_arrays({"north": (X, y), "south": (X, y)})'


@dataclass(frozen=True, eq=False)
class GivenRecords:
    """The training records or the test records of one site, not encoded yet; `where` names them in errors."""

    inputs: Inputs
    labels: NDArray[Any]
    groups: NDArray[Any] | None
    where: str


def make_federation_from_arrays(
    train: Mapping[str, Sequence[Any]],
    test: Mapping[str, Sequence[Any]] | Sequence[Any] | float | None,
    *,
    class_names: Sequence[str] | None,
    validation: float | None,
    split_seed: int,
    rows_alone: bool,
    number: tuple[float, float] | None,
    name: str,
) -> Federation:
    """A federation with one client for each site, from arrays in memory; arguments as in `Federation.from_arrays`."""
    if not isinstance(train, Mapping) or not train:
        found = "an empty one" if isinstance(train, Mapping) else type(train).__name__
        raise InputError(
            f"expected a dict with the records of each site by name, found: {found}",
            hint=EXAMPLE,
        )
    parts = {site: _read_given_records(given, f"site {site}") for site, given in sorted(train.items())}
    tests = _read_test_records(test, tuple(parts))
    both = [*parts.values(), *tests.values()]
    classes = _ClassLabels((), ())
    if number is None:
        classes = _ClassLabels.from_labels([part.labels for part in both], class_names)
    schema, notes = _make_schema([part.inputs for part in both], classes.names, number)
    from_rows = any(each.categories or each.range for each in schema.features)
    if rows_alone and (from_rows or (number is None and class_names is None)):
        notes = (*notes, SCHEMA_FROM_ROWS)
    if tests and rows_alone:
        raise InputError(
            "rows_alone chooses the test rows by a hash of each row, but test records were given",
            hint="leave out test, or rows_alone",
        )
    test_share = float(test) if isinstance(test, int | float) else 0.2
    preparation = RowPreparation.ALONE if rows_alone else RowPreparation.TOGETHER

    def split_again(seed: int) -> Federation:
        sites = []
        for site, part in parts.items():
            with prefix_errors(part.where):
                if tests:
                    key = make_split_key(site, seed)
                    sites.append(_make_site_with_test(site, part, tests[site], classes, schema, validation or 0.0, key))
                else:
                    shares = HeldOutShares(0.2 if validation is None else validation, test_share, seed)
                    data = _join_parts([part], schema, classes)
                    sites.append(make_site(data, schema, site, make_split_key(site), shares, preparation))
        joined = join_sites(sites, schema, name)
        if tests and not isinstance(test, Mapping):
            shared_rows = -1 - torch.arange(len(joined.test) // len(sites))
            joined = replace(joined, test=replace(joined.test, rows=shared_rows.repeat(len(sites))))
        return replace(
            joined,
            labels=classes.numbers,
            notes=notes,
            rows_alone=rows_alone,
            split_again=None if tests else split_again,  # the test rows are those that were given
        )

    return split_again(split_seed)


def convert_inputs(values: Any, where: str) -> Inputs:
    """The array, tensor or data frame converted to a numpy array or a polars data frame."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if isinstance(values, pl.DataFrame):
        return values
    if hasattr(values, "columns") and hasattr(values, "iloc"):  # a pandas data frame, without importing pandas
        names = Counter(str(column) for column in values.columns)
        if repeated := [name for name, times in names.items() if times > 1]:
            raise InputError(
                f"{where}: expected columns with different names, found more than once: {', '.join(repeated)}",
                hint="rename the columns",
            )
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


def convert_to_feature_columns(inputs: Inputs, schema: Schema, where: str) -> dict[str, pl.Series]:
    """The feature columns of a data frame, or of an array that has them in the schema's order."""
    frame = inputs
    if not isinstance(frame, pl.DataFrame):
        if frame.ndim != 2 or frame.shape[1] != len(schema.features):
            raise InputError(
                f"{where}: expected records of {len(schema.features)} columns, found an array of shape {frame.shape}",
                hint="give one record a row, with the same columns in the same order as the training records",
            )
        names = [feature.column for feature in schema.features]
        frame = pl.DataFrame([pl.Series(name, frame[:, at].astype(np.float64)) for at, name in enumerate(names)])
    return select_features(frame, schema, where)


def _to_series(name: str, values: NDArray[Any]) -> pl.Series:
    if values.dtype.kind in "fiub":
        return pl.Series(name, values)
    if values.dtype.kind == "M":
        return pl.Series(name, values.astype("datetime64[us]"))
    return pl.Series(name, [None if _is_missing(value) else str(value) for value in values], dtype=pl.String)


def _is_missing(value: Any) -> bool:
    # pandas has three kinds of missing values, and its NA cannot be compared with itself.
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and isnan(value))


def _read_given_records(given: Sequence[Any], where: str) -> GivenRecords:
    if not isinstance(given, tuple | list) or len(given) not in (2, 3):
        raise InputError(f"{where}: expected (X, y) or (X, y, groups), found: {type(given).__name__}", hint=EXAMPLE)
    inputs, labels = convert_inputs(given[0], where), _read_column(given[1], where, "label")
    groups = _read_column(given[2], where, "group") if len(given) == 3 else None
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
    return GivenRecords(inputs, labels, groups, where)


def _read_column(values: Any, where: str, what: str) -> NDArray[Any]:
    """The labels or groups as an array of numbers or texts; InputError if a value is missing or both kinds occur."""
    array: NDArray[Any] = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind == "U" and isinstance(values, list | tuple):
        array = np.asarray(values, dtype=object)  # numpy has made texts of numbers and NaN among texts
    if array.ndim == 1 and array.dtype.kind in "fOT":
        found = array.tolist()
        missing = [row for row, value in enumerate(found) if _is_missing(value)]
        if missing:
            raise InputError(
                f"{where}: expected a {what} for each record, found none in row {missing[0] + 1}",
                hint=f"leave out the rows without a {what}",
            )
        if array.dtype.kind != "f":
            array = np.array([int(value) if isinstance(value, Integral) else str(value) for value in found])
            if array.dtype.kind == "U" and any(isinstance(value, Integral) for value in found):
                raise InputError(
                    f"{where}: expected {what}s that are all whole numbers or all texts, found both",
                    hint="make texts of all of them: [str(value) for value in values]",
                )
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def _read_test_records(test: Any, sites: tuple[str, ...]) -> dict[str, GivenRecords]:
    """The test records of each site, by name; empty if a share of each site's rows is to be held out instead."""
    if test is None or isinstance(test, int | float):
        return {}
    if not isinstance(test, Mapping):
        common = _read_given_records(test, "the common test records")
        return dict.fromkeys(sites, common)
    if set(test) != set(sites):
        raise InputError(
            f"expected test records of the sites {', '.join(sites)}, found those of: {', '.join(sorted(test))}",
            hint="give test records for the same sites as in train, one (X, y) for all, or a share such as 0.2",
        )
    return {site: _read_given_records(test[site], f"site {site}, test records") for site in sites}


@dataclass(frozen=True)
class _ClassLabels:
    """The names of the federation's classes; if the user's labels are whole numbers, also the number of each class."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]  # empty if labels are texts

    @classmethod
    def from_labels(cls, labels: Sequence[NDArray[Any]], names: Sequence[str] | None) -> _ClassLabels:
        """The classes with these `names`, or if `names` is None, the classes that occur in the labels."""
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

    def encode(self, labels: NDArray[Any], where: str) -> NDArray[np.int64]:
        """The position of each label's class; InputError for a label that is not one of the classes."""
        codes = find_codes(labels.tolist(), self.numbers or self.names)
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
    """The schema of the records of all sites, and a sentence for each column that was left out."""
    label, shape = "label", ()
    features: tuple[Feature, ...] = ()
    notes: tuple[str, ...] = ()
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
                f"expected the same columns at every site, found columns that only some have: {', '.join(differ)}",
                hint="give every site the same columns",
            )
        joined = pl.concat([frame.select(columns) for frame in frames], how="vertical_relaxed")
        features, notes = draft_features(joined, len(frames))
        # The labels are not in the table, so their name must differ from those of its columns.
        label = next(name for name in ("label", "label_", "label__") if name not in columns)
    else:
        shapes = {part.shape[1:] for part in inputs if not isinstance(part, pl.DataFrame)}
        if len(shapes) > 1:
            raise InputError(
                f"expected records of one shape at every site, found: {', '.join(map(str, sorted(shapes)))}",
                hint="give X the same columns at every site",
            )
        (shape,) = shapes
        if len(shape) == 1:
            features, shape = tuple(Feature(f"x{at}", FeatureKind.NUMERIC) for at in range(shape[0])), ()
    ends = None if number is None else check_range(number, "the call")
    schema = Schema(label, (label,) if number else names, features, shape, target_range=ends)
    return check_schema(schema, "the records of the sites"), notes


def _join_parts(parts: Sequence[GivenRecords], schema: Schema, classes: _ClassLabels) -> Table | Arrays:
    """The records of these parts, one part after the other: a table if the schema has features, else arrays."""
    if schema.target_range is None:
        targets = None
        codes = np.concatenate([classes.encode(part.labels, part.where) for part in parts])
    else:
        targets = np.concatenate(
            [convert_labels_to_targets(part.labels, schema.target_range, part.where) for part in parts]
        )
        codes = np.zeros(len(targets), dtype=np.int64)
    groups = [part.groups for part in parts if part.groups is not None]
    numbers, names = find_group_codes(np.concatenate(groups)) if len(groups) == len(parts) else (None, ())
    if not schema.features:
        inputs = to_tensor(np.concatenate([np.asarray(part.inputs) for part in parts]))
        return Arrays(inputs, codes, numbers, names, targets)
    columns = [convert_to_feature_columns(part.inputs, schema, part.where) for part in parts]
    joined = {column: pl.concat([found[column] for found in columns]) for column in columns[0]}
    return Table(joined, codes, numbers, names, None, targets)


def _make_site_with_test(
    name: str,
    part: GivenRecords,
    test: GivenRecords,
    classes: _ClassLabels,
    schema: Schema,
    validation: float,
    key: Key,
) -> Site:
    """The site with these training and test records; a share of the training records is for validation."""
    rows, test_rows = np.split(np.arange(len(part.labels) + len(test.labels)), [len(part.labels)])
    split = Split(rows, rows[:0], test_rows)
    if validation:
        # `split_rows` always holds out two parts: each gets half of the share, and both together are for validation.
        own = _join_parts([part], schema, classes)
        halves = split_rows(own.labels, own.groups, None, HeldOutShares(validation / 2, validation / 2), key)
        split = Split(halves.train, np.sort(np.concatenate([halves.validation, halves.test])), test_rows)
    return make_site_with_split(_join_parts([part, replace(test, groups=None)], schema, classes), schema, name, split)
