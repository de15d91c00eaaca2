"""The schema file that the sites of a federation agree on: the label values, and the columns or the input shape.

All that must be equal at every site is in this file. So two sites with different missing values and different
categories still give their bodies inputs of the same layout.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlog.errors import InputError
from fedlog.files.toml import parse_toml, read_toml

VERSION = 1
DRAFTS = "`fedlog federate schema DATA > schema.toml` drafts one"
Range = tuple[float, float]
TEXT_BYTES = 2048  # so many bytes of a text's UTF-8 form are used


class FeatureKind(StrEnum):
    """The kind of a column."""

    NUMERIC = "numeric"
    CATEGORICAL = "categorical"
    TEXT = "text"
    """Free text, for bodies that take text: the first bytes of its UTF-8 form, filled up with zeros."""


@dataclass(frozen=True)
class Feature:
    """A column of the table that is used as a feature."""

    column: str
    kind: FeatureKind
    categories: tuple[str, ...] = ()  # empty for a numeric column
    range: Range | None = None  # of a numeric column: agreed by all sites, and scaled to -1..1

    @property
    def width(self) -> int:
        """The number of inputs that the column becomes.

        Numeric: its value, and whether it is missing. Categorical: one for each category, for others, and for missing.
        """
        if self.kind is FeatureKind.TEXT:
            return TEXT_BYTES
        return 2 if self.kind is FeatureKind.NUMERIC else len(self.categories) + 2


@dataclass(frozen=True)
class Schema:
    """The format of every site's data: `features` for a table, `input_shape` for images and arrays.

    If a number is predicted, `number` is the range on which all sites agree, and all rows have one class with the name
    of the label column.
    """

    label_column: str
    label_values: tuple[str, ...]
    features: tuple[Feature, ...] = ()
    input_shape: tuple[int, ...] = ()
    group_column: str | None = None
    time_column: str | None = None
    number: Range | None = None
    input_range: Range | None = None  # of images and arrays: agreed by all sites, and scaled to -1..1

    @property
    def n_class(self) -> int:
        """The number of classes, including those that a site may not have."""
        return len(self.label_values)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record as input of a body."""
        return self.input_shape or (sum(feature.width for feature in self.features),)

    @property
    def digest(self) -> str:
        """16 hex digits that are equal at two sites exactly if their schemas agree."""
        agreed = {
            "version": VERSION,
            "labels": list(self.label_values),
            "features": [
                [f.column, f.kind.value, list(f.categories), *([list(f.range)] if f.range else [])]
                for f in self.features
            ],
            "input_shape": list(self.input_shape),
            **({"number": list(self.number)} if self.number else {}),
            **({"input_range": list(self.input_range)} if self.input_range else {}),
        }
        return hashlib.sha256(json.dumps(agreed, ensure_ascii=True).encode()).hexdigest()[:16]


def load_schema(path: Path) -> Schema:
    """The schema in a file; InputError with the file and the entry that is wrong."""
    return _read_schema(read_toml(path, "the schema", DRAFTS), str(path))


def parse_schema(text: str, where: str) -> Schema:
    """The schema in a TOML text; `where` names the text in errors."""
    return _read_schema(parse_toml(text, where), where)


def _read_schema(document: dict[str, Any], where: str) -> Schema:
    _check_names(document, {"version", "label", "split", "input", "feature"}, where)
    if document.get("version") != VERSION:
        raise InputError(f"expected version = {VERSION} in {where}, found: {document.get('version')!r}", hint=DRAFTS)
    label = _read_section(document, "label", where)
    _check_names(label, {"column", "values", "range"}, f"{where}, [label]")
    if ("values" in label) == ("range" in label):
        raise InputError(
            f"expected values (of classes) or range = [low, high] (of a number) in {where}, [label], found: "
            + ("both" if "values" in label else "neither")
        )
    column, number = _read_text(label, "column", f"{where}, [label]"), _read_range(label, f"{where}, [label]")
    split = _read_section(document, "split", where) if "split" in document else {}
    _check_names(split, {"group", "time"}, f"{where}, [split]")
    entries = document.get("feature", [])
    if not isinstance(entries, list):
        raise InputError(f"expected [[feature]] tables in {where}, found: {type(entries).__name__}")
    schema = Schema(
        label_column=column,
        label_values=_read_texts(label, "values", f"{where}, [label]") if number is None else (column,),
        features=tuple(_read_feature(entry, f"{where}, feature {i}") for i, entry in enumerate(entries, start=1)),
        input_shape=_read_shape(document, where),
        input_range=_read_range(document.get("input", {}), f"{where}, [input]"),
        group_column=_read_text(split, "group", f"{where}, [split]") if "group" in split else None,
        time_column=_read_text(split, "time", f"{where}, [split]") if "time" in split else None,
        number=number,
    )
    return check_schema(schema, where)


def check_schema(schema: Schema, where: str) -> Schema:
    """The same schema; InputError if no federation could use it."""
    if schema.n_class < 2 and schema.number is None:
        raise InputError(
            f"expected at least 2 label values in {where}, found: {schema.n_class}",
            hint="a classifier needs at least two classes: is it the right label column?",
        )
    if bool(schema.features) == bool(schema.input_shape):
        found = "both" if schema.features else "neither"
        raise InputError(f"expected either [[feature]] tables or [input] in {where}, found: {found}")
    if schema.group_column and schema.time_column:
        raise InputError(f"expected a group or a time column in {where}, found: both")
    columns = [feature.column for feature in schema.features]
    for taken in (schema.label_column, schema.group_column, schema.time_column):
        if taken in columns:
            # If the group or the date were an input, the model could recognise the person instead of the pattern.
            raise InputError(f"the label, group and time columns must not be features in {where}, found: {taken}")
    for name, values in (("label values", schema.label_values), ("feature columns", tuple(columns))):
        _check_distinct(values, name, where)
    for feature in schema.features:
        _check_distinct(feature.categories, f"categories of {feature.column}", where)
    return schema


def dump_schema(schema: Schema, comments: tuple[str, ...] = ()) -> str:
    """The TOML text of a schema, with comments at the top; `parse_schema` reads it back."""
    lines = [f"# {comment}".rstrip() for comment in comments]
    lines += [f"version = {VERSION}", "", "[label]", f"column = {quote_toml(schema.label_column)}"]
    if schema.number is None:
        lines.append(f"values = {_quote_list(schema.label_values)}")
    else:
        lines.append(f"range = {list(schema.number)}")
    if schema.group_column or schema.time_column:
        lines += ["", "[split]"]
        lines += [f"group = {quote_toml(schema.group_column)}"] if schema.group_column else []
        lines += [f"time = {quote_toml(schema.time_column)}"] if schema.time_column else []
    if schema.input_shape:
        lines += ["", "[input]", f"shape = {list(schema.input_shape)}"]
        lines += [f"range = {list(schema.input_range)}"] if schema.input_range else []
    for feature in schema.features:
        lines += [
            "",
            "[[feature]]",
            f"column = {quote_toml(feature.column)}",
            f"kind = {quote_toml(feature.kind.value)}",
        ]
        if feature.kind is FeatureKind.CATEGORICAL:
            lines.append(f"categories = {_quote_list(feature.categories)}")
        if feature.range is not None:
            lines.append(f"range = {list(feature.range)}")
    return "\n".join(lines) + "\n"


def quote_toml(text: str) -> str:
    """The text as a TOML basic string."""
    # A JSON string is also a TOML basic string, except for DEL: JSON does not escape it, and TOML requires that.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _quote_list(texts: tuple[str, ...]) -> str:
    return "[" + ", ".join(quote_toml(text) for text in texts) + "]"


def _read_feature(entry: object, where: str) -> Feature:
    if not isinstance(entry, dict):
        raise InputError(f"expected a table in {where}, found: {type(entry).__name__}")
    _check_names(entry, {"column", "kind", "categories", "range"}, where)
    column = _read_text(entry, "column", where)
    try:
        kind = FeatureKind(_read_text(entry, "kind", where))
    except ValueError:
        kinds = " or ".join(kind.value for kind in FeatureKind)
        raise InputError(f"expected kind {kinds} in {where} ({column}), found: {entry['kind']}") from None
    if kind is not FeatureKind.CATEGORICAL and "categories" in entry:
        raise InputError(f"expected no categories for a {kind} column in {where}, found some: {column}")
    if kind is not FeatureKind.NUMERIC and "range" in entry:
        raise InputError(f"expected no range for a {kind} column in {where}, found one: {column}")
    categories = _read_texts(entry, "categories", f"{where} ({column})") if kind is FeatureKind.CATEGORICAL else ()
    return Feature(column, kind, categories, _read_range(entry, f"{where} ({column})"))


def _read_range(section: Mapping[str, Any], where: str) -> Range | None:
    """The entry `range` of a section; None if there is none."""
    if "range" not in section:
        return None
    return check_range(section["range"], where)


def check_range(given: Any, where: str) -> Range:
    """The two ends of a range, the lower one first; InputError if it is not a range."""
    ends = list(given) if isinstance(given, list | tuple) else []
    numbers = [float(end) for end in ends if isinstance(end, int | float) and not isinstance(end, bool)]
    if len(ends) != 2 or len(numbers) != 2 or not all(map(math.isfinite, numbers)) or not numbers[0] < numbers[1]:
        raise InputError(f"expected range = [low, high], two numbers, in {where}, found: {given!r}")
    return numbers[0], numbers[1]


def _read_shape(document: Mapping[str, Any], where: str) -> tuple[int, ...]:
    if "input" not in document:
        return ()
    section = _read_section(document, "input", where)
    _check_names(section, {"shape", "range"}, f"{where}, [input]")
    shape = section.get("shape")
    sizes = shape if isinstance(shape, list) else []
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise InputError(f"expected shape = [channels, height, width] or [width] in {where}, [input], found: {shape!r}")
    return tuple(sizes)


def _read_section(document: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    section = document.get(name)
    if not isinstance(section, dict):
        raise InputError(
            f"expected a [{name}] section in {where}, found: {'none' if section is None else section!r}", hint=DRAFTS
        )
    return section


def _read_text(section: Mapping[str, Any], name: str, where: str) -> str:
    value = section.get(name)
    if not isinstance(value, str) or not value:
        raise InputError(f"expected a non-empty text for {name} in {where}, found: {value!r}")
    return value


def _read_texts(section: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    values = section.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(
            f"expected a list of texts for {name} in {where}, found: {values!r}",
            hint='numbers are written as texts too: ["0", "1"]',
        )
    return tuple(values)


def _check_names(section: Mapping[str, Any], names: set[str], where: str) -> None:
    unknown = sorted(set(section) - names)
    if unknown:
        raise InputError(
            f"expected only {', '.join(sorted(names))} in {where}, found: {', '.join(unknown)}", hint=DRAFTS
        )


def _check_distinct(values: tuple[str, ...], what: str, where: str) -> None:
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise InputError(f"expected distinct {what} in {where}, found more than once: {', '.join(repeated)}")


def half_width(number: Range) -> float:
    """Half the width of the range: the factor between a scaled number and the number."""
    return (number[1] - number[0]) / 2


def scale_targets(values: NDArray[Any], number: Range) -> NDArray[np.float32]:
    """The numbers, scaled so that the range becomes -1 to 1."""
    scaled = (values.astype(np.float64) - sum(number) / 2) / half_width(number)
    return scaled.astype(np.float32)


def unscale_targets(scaled: NDArray[Any], number: Range) -> NDArray[np.float64]:
    """The numbers in their original units, from scaled ones."""
    own: NDArray[np.float64] = scaled.astype(np.float64) * half_width(number) + sum(number) / 2
    return own
