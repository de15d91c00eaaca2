"""Read a site's table (CSV or Parquet) by the schema, and encode its rows as inputs.

The inputs of a row:
- a numeric column becomes two inputs: the scaled value, and 1 if the value is missing, else 0;
- a categorical column becomes one input for each category, one for "other" (a category that the schema does not list)
  and one for a missing value: 1 for the one that applies, 0 for the rest;
- a column of free text becomes the bytes of the text, as numbers.

A missing number is replaced by the column's median. Median, mean and standard deviation are those of the site's
training rows, or follow from the column's range if the schema has one. They are stored with the site's model and never
leave the site.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.data.csv_checks import SAVE_AS_UTF_8, blank_unusable_lines, check_rows, read_header, shorten_list
from fedlog.data.rows import BadRowPolicy, BadRowsError, find_codes, read_usable_rows
from fedlog.data.schema import TEXT_BYTES, Feature, FeatureKind, Schema, scale_targets
from fedlog.errors import InputError
from fedlog.files.json_text import parse_json

# The texts that mean "no value" in a CSV file.
MISSING_TEXTS = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
NO_ROWS_HINT = "fill the file, or leave the site out"


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a table, checked against the schema. Numbers are float64, NaN if missing; other columns are text."""

    columns: dict[str, pl.Series]
    labels: NDArray[np.int64]  # (n,) positions in the schema's label values
    groups: NDArray[np.int64] | None  # (n,) positions in `group_names`
    group_names: tuple[str, ...]
    times: NDArray[np.float64] | None
    targets: NDArray[np.float32] | None = None  # (n,) numbers to predict, scaled so that the schema's range is -1..1


def read_frame(path: Path, needed: Collection[str] = ()) -> pl.DataFrame:
    """The file as a data frame; every CSV value is a text, so that "007" stays a category.

    `needed` are the columns that will be used (empty: all); see `read_header`.
    """
    frame = _read_with_short_rows(path, needed, BadRowPolicy.REFUSED)
    # A short row has no value in the last column; only if there is such a row, all rows have to be checked.
    if path.suffix != ".parquet" and frame.width > 1 and frame.height and frame[:, -1].null_count():
        check_rows(path, _find_separator(path), frame.width)
    return frame


def _find_separator(path: Path) -> str:
    return "\t" if path.suffix == ".tsv" else ","


def _read_with_short_rows(path: Path, needed: Collection[str], bad_rows: BadRowPolicy) -> pl.DataFrame:
    """The file as a data frame, of texts if it is CSV; the fields that a short row lacks are missing values.

    With LEFT_OUT, each line of a CSV file becomes one row; a line that cannot be read has only missing values.
    """
    separator = _find_separator(path)
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path)
        names = read_header(path, separator, needed)
        source = (
            path if bad_rows is BadRowPolicy.REFUSED else blank_unusable_lines(path.read_bytes(), separator, len(names))
        )
        return pl.read_csv(source, separator=separator, infer_schema=False, null_values=list(MISSING_TEXTS))
    except FileNotFoundError:
        raise InputError(f"expected a table, found no file: {path}", hint="is the path right?") from None
    except pl.exceptions.NoDataError:
        raise InputError(f"expected a table with a header, found an empty file: {path}", hint=NO_ROWS_HINT) from None
    except (pl.exceptions.PolarsError, OSError) as error:
        if isinstance(error, pl.exceptions.ComputeError) and path.suffix != ".parquet":
            check_rows(path, separator, len(names))  # names a row with too many fields, which is the usual reason
        raise InputError(
            f"{path} cannot be read as a table: {str(error).splitlines()[0]}",
            hint=SAVE_AS_UTF_8 if "utf-8" in str(error) else f"is it a {path.suffix} file that you may read?",
        ) from None


def read_table(path: Path, schema: Schema, bad_rows: BadRowPolicy = BadRowPolicy.REFUSED) -> tuple[Table, str | None]:
    """The labelled rows of a file, and a sentence about bad rows that were left out, or None if all rows were read.

    REFUSED raises an InputError that names the first bad or short row. LEFT_OUT leaves bad rows out, and reads the
    fields that a short row lacks as missing values. A missing column is always an InputError.
    """
    needed = _list_columns(schema)
    refuses = bad_rows is BadRowPolicy.REFUSED
    frame = read_frame(path, needed) if refuses else _read_with_short_rows(path, needed, bad_rows)
    return read_usable_rows(lambda kept: check_table(frame[kept], schema, str(path)), frame.height, bad_rows)


def check_table(frame: pl.DataFrame, schema: Schema, where: str) -> Table:
    """The rows of a data frame with labels, checked against the schema; `where` names the frame in errors."""
    wanted = _list_label_and_split_columns(schema)
    columns = select_features(frame, schema, where, tuple(wanted))
    targets = (
        None if schema.target_range is None else _read_targets(frame[schema.label_column], schema.target_range, where)
    )
    labels = (
        _read_labels(frame[schema.label_column], schema, where)
        if targets is None
        else np.zeros(len(targets), dtype=np.int64)
    )
    groups, names = (None, ()) if schema.group_column is None else _read_groups(frame[schema.group_column], where)
    times = None if schema.time_column is None else _read_times(frame[schema.time_column], where)
    return Table(columns, labels, groups, names, times, targets)


def read_feature_columns(path: Path, schema: Schema) -> dict[str, pl.Series]:
    """The feature columns of a file of rows to predict; the file needs no label column."""
    return select_features(read_frame(path, _list_columns(schema)), schema, str(path))


def _list_label_and_split_columns(schema: Schema) -> list[str]:
    return [schema.label_column, *(name for name in (schema.group_column, schema.time_column) if name)]


def _list_columns(schema: Schema) -> set[str]:
    return {*_list_label_and_split_columns(schema), *(feature.column for feature in schema.features)}


@dataclass(frozen=True)
class TableEncoder:
    """Encodes a site's rows as inputs; holds the site's statistics of each numeric column, in the schema's order."""

    schema: Schema
    median: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def encode(self, columns: dict[str, pl.Series]) -> Tensor:
        """The inputs (n, width) float32 of these rows."""
        parts: list[NDArray[np.float32]] = []
        numbers = iter(zip(self.median, self.mean, self.std, strict=True))
        for feature in self.schema.features:
            series = columns[feature.column]
            if feature.kind is FeatureKind.NUMERIC:
                median, mean, std = next(numbers)
                values = series.to_numpy().astype(np.float64)
                gap = np.isnan(values)
                scaled = (np.where(gap, median, values) - mean) / std
                parts.append(np.stack([scaled, gap], axis=1).astype(np.float32))
            elif feature.kind is FeatureKind.TEXT:
                parts.append(encode_texts(series))
            else:
                parts.append(_encode_categories(series, feature))
        return torch.from_numpy(np.ascontiguousarray(np.concatenate(parts, axis=1)))

    def to_json(self) -> str:
        """The statistics as JSON, with the digest of the schema; the schema has its own file."""
        numbers = asdict(self)
        del numbers["schema"]
        return json.dumps({"schema_digest": self.schema.digest, **numbers})

    @classmethod
    def from_json(cls, text: str, schema: Schema) -> TableEncoder:
        """The encoder that `to_json` wrote; InputError if it was made for another schema."""
        try:
            stored = parse_json(text)
            digest = stored["schema_digest"]
            parts = [tuple(float(value) for value in stored[name]) for name in ("median", "mean", "std")]
        except (ValueError, KeyError, TypeError):
            raise InputError(
                "the stored scaling of the table is damaged: it is not the JSON that fedlog writes",
                hint="restore the model's files from a copy, or train and save the model again",
            ) from None
        if digest != schema.digest:
            raise InputError(
                f"the model was saved with another schema (digest {digest}) than this one (digest {schema.digest})",
                hint="give the schema that the model was trained with",
            )
        numeric = sum(feature.kind is FeatureKind.NUMERIC for feature in schema.features)
        wrong = [len(part) for part in parts if len(part) != numeric]
        if wrong:
            raise InputError(
                f"the stored scaling is for {wrong[0]} numeric columns, but the schema has {numeric}",
                hint="restore the model's files from a copy, or train and save the model again",
            )
        return cls(schema, *parts)


def encode_texts(series: pl.Series) -> NDArray[np.float32]:
    """The texts as numbers (n, TEXT_BYTES): the first bytes of their UTF-8, then zeros; only zeros if missing."""
    written = np.zeros((len(series), TEXT_BYTES), dtype=np.float32)
    for row, text in enumerate(series.to_list()):
        found = np.frombuffer((text or "").encode()[:TEXT_BYTES], dtype=np.uint8)
        written[row, : len(found)] = found
    return written


def fit_encoder(schema: Schema, columns: dict[str, pl.Series], rows: NDArray[np.int64]) -> TableEncoder:
    """The encoder with the statistics of these rows, the site's training rows.

    A column without values gets median 0. A column with equal values is not divided by its spread of 0, which would
    turn the first different value into infinity.
    """
    found = []
    for feature in schema.features:
        if feature.kind is not FeatureKind.NUMERIC:
            continue
        if feature.range is not None:  # all sites agreed on it, so the rows do not matter
            low, high = feature.range
            found.append(((low + high) / 2, (low + high) / 2, (high - low) / 2))
            continue
        values = columns[feature.column].to_numpy().astype(np.float64)[rows]
        known = values[~np.isnan(values)]
        median = float(np.median(known)) if len(known) else 0.0
        filled = np.where(np.isnan(values), median, values)
        mean, std = (float(filled.mean()), float(filled.std())) if len(filled) else (0.0, 0.0)
        # A spread that is only rounding counts as none.
        found.append((median, mean, std if std > 1e-9 * max(1.0, abs(mean)) else 1.0))
    medians, means, stds = zip(*found, strict=True) if found else ((), (), ())
    return TableEncoder(schema, medians, means, stds)


def select_features(
    frame: pl.DataFrame, schema: Schema, where: str, required: tuple[str, ...] = ()
) -> dict[str, pl.Series]:
    """The feature columns of a data frame; `where` names the data frame in errors.

    InputError if a feature column, or one of the columns `required`, is missing.
    """
    present = set(frame.columns)
    absent = [name for name in (*required, *(f.column for f in schema.features)) if name not in present]
    if absent:
        raise InputError(
            f"expected every column of the schema in {where}, found no column: {shorten_list(absent)}",
            hint=f"the file has: {shorten_list(frame.columns)}",
        )
    if frame.height == 0:
        raise InputError(f"expected at least one row in {where}, found a header and no rows", hint=NO_ROWS_HINT)
    return {
        feature.column: (
            _read_numbers(frame[feature.column], where)
            if feature.kind is FeatureKind.NUMERIC
            else _read_texts(frame[feature.column])
        )
        for feature in schema.features
    }


def _read_numbers(series: pl.Series, where: str) -> pl.Series:
    """The column as Float64, NaN if missing; InputError for the first row with a text or an infinity."""
    if series.dtype == pl.String:
        series = series.str.strip_chars()
    try:
        values = series.cast(pl.Float64, strict=False)
    except pl.exceptions.PolarsError:
        raise InputError(
            f"expected numbers in column {series.name} of {where}, found: {series.dtype}",
            hint="make the column categorical in the schema, or leave it out",
        ) from None
    bad = (values.is_null() & series.is_not_null()) | values.is_infinite().fill_null(value=False)
    _refuse_bad_values(
        bad, series, "a finite number", where, "write it with a decimal point; a missing value may be left empty"
    )
    return values.fill_null(float("nan"))


def _read_texts(series: pl.Series) -> pl.Series:
    if series.dtype != pl.String:
        return series.cast(pl.String)
    return series.str.strip_chars()


def _read_labels(series: pl.Series, schema: Schema, where: str) -> NDArray[np.int64]:
    texts = _read_texts(series)
    known = texts.is_in(list(schema.label_values)).fill_null(value=False)
    expected = f"one of the label values {', '.join(schema.label_values)}"
    _refuse_bad_values(~known, series, expected, where, "a new class goes into the schema, the same at all sites")
    return find_codes(texts.to_list(), schema.label_values)


def _read_targets(series: pl.Series, target_range: tuple[float, float], where: str) -> NDArray[np.float32]:
    values = _read_numbers(series, where)
    _refuse_bad_values(values.is_nan(), series, "a number", where)
    return scale_targets(values.to_numpy(), target_range)


def _read_groups(series: pl.Series, where: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    texts = _read_texts(series)
    _refuse_bad_values(texts.is_null(), series, "a group", where)
    names = tuple(sorted(set(texts.to_list())))
    return find_codes(texts.to_list(), names), names


def _read_times(series: pl.Series, where: str) -> NDArray[np.float64]:
    parsed = _parse_times(series.str.strip_chars()) if series.dtype == pl.String else series
    physical = parsed.to_physical() if parsed.dtype.is_temporal() else parsed
    times = physical.cast(pl.Float64)
    # NaN is neither before nor after another time, so its row would be in no part.
    usable = times.is_finite().fill_null(value=False)
    _refuse_bad_values(~usable, series, "a number or an ISO date or time", where)
    return times.to_numpy()


def _parse_times(texts: pl.Series) -> pl.Series:
    """Parse the texts as numbers or as times, whichever succeeds for more of them."""
    numbers = texts.cast(pl.Float64, strict=False)
    if numbers.null_count() == 0:
        return numbers
    try:
        times = texts.str.to_datetime(strict=False)
    except pl.exceptions.PolarsError:  # its format cannot be guessed
        return numbers
    return times if times.null_count() < numbers.null_count() else numbers


def _encode_categories(series: pl.Series, feature: Feature) -> NDArray[np.float32]:
    codes = find_codes(series.to_list(), feature.categories)
    other, gap = len(feature.categories), len(feature.categories) + 1
    codes = np.where(codes < 0, other, codes)
    codes = np.where(series.is_null().to_numpy(), gap, codes)
    return np.eye(feature.width, dtype=np.float32)[codes]


def _refuse_bad_values(bad: pl.Series, series: pl.Series, expected: str, where: str, advice: str | None = None) -> None:
    if not bad.any():
        return
    row = int(bad.arg_true()[0])
    value = series[row]
    found = "no value" if value is None else repr(value)
    rest = int(bad.sum()) - 1
    more = f" (and {rest} more rows)" if rest else ""
    raise BadRowsError(
        f"expected {expected} in column {series.name}, row {row + 1} of {where}, found: {found}{more}",
        hint="; ".join(filter(None, ("correct or remove the row", advice))),
        bad=bad.to_numpy(),
    )
