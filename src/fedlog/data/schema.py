"""The schema file that the sites of a federation agree on: the label values, and the columns or the input shape.

All that must be equal at every site is in this file. So the inputs of all sites have the same layout, even if a site
lacks some categories or has no missing values.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from fedlog.errors import InputError, add_default_hint
from fedlog.files.toml import format_toml_value, parse_toml, read_toml

VERSION = 1
DRAFT_HINT = "`fedlog federate schema DATA > schema.toml` drafts one"
Range = tuple[float, float]
Text = Annotated[str, Meta(min_length=1)]
Size = Annotated[int, Meta(gt=0)]
TEXT_BYTES = 2048  # so many bytes of a text's UTF-8 form are used


class FeatureKind(StrEnum):
    """The kind of a feature column: numbers, categories or free text."""

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

        A numeric column becomes two inputs: the value, and whether it is missing. A categorical column becomes one
        input for each category, one for other values, and one for missing values. Free text becomes TEXT_BYTES inputs.
        """
        if self.kind is FeatureKind.TEXT:
            return TEXT_BYTES
        return 2 if self.kind is FeatureKind.NUMERIC else len(self.categories) + 2


@dataclass(frozen=True)
class Schema:
    """The format of every site's data: `features` for a table, `input_shape` for images and arrays.

    If a number is predicted, `target_range` is the range in which it lies, on which all sites agree. There are no
    classes then: `label_values` has a single entry, the name of the label column.
    """

    label_column: str
    label_values: tuple[str, ...]
    features: tuple[Feature, ...] = ()
    input_shape: tuple[int, ...] = ()
    group_column: str | None = None
    time_column: str | None = None
    target_range: Range | None = None
    input_range: Range | None = None  # of images and arrays: agreed by all sites, and scaled to -1..1

    @property
    def n_class(self) -> int:
        """The number of classes, including those that a site may not have."""
        return len(self.label_values)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record as input of a body: `input_shape`, or for a table the number of inputs of a row."""
        return self.input_shape or (sum(feature.width for feature in self.features),)

    @property
    def digest(self) -> str:
        """A digest of 16 hex digits: it is equal at two sites exactly if their records have the same format."""
        agreed = {
            "version": VERSION,
            "labels": list(self.label_values),
            "features": [
                [f.column, f.kind.value, list(f.categories), *([list(f.range)] if f.range else [])]
                for f in self.features
            ],
            "input_shape": list(self.input_shape),
            **({"number": list(self.target_range)} if self.target_range else {}),
            **({"input_range": list(self.input_range)} if self.input_range else {}),
        }
        return hashlib.sha256(json.dumps(agreed, ensure_ascii=True).encode()).hexdigest()[:16]


@add_default_hint(DRAFT_HINT)
def load_schema(path: Path) -> Schema:
    """The schema in a file; InputErrors name the file and the wrong entry."""
    return _read_schema(read_toml(path, "the schema", DRAFT_HINT), str(path))


@add_default_hint(DRAFT_HINT)
def parse_schema(text: str, where: str) -> Schema:
    """The schema in a TOML text; `where` names the text in errors."""
    return _read_schema(parse_toml(text, where), where)


# How each entry of a schema file is read, and how errors describe it.
_ENTRIES: dict[str, tuple[Any, str]] = {
    "column": (Text, "a non-empty text for column"),
    "group": (Text, "a non-empty text for group"),
    "time": (Text, "a non-empty text for time"),
    "values": (tuple[str, ...], 'values = ["0", "1"], a list of texts,'),
    "categories": (tuple[str, ...], 'categories = ["a", "b"], a list of texts,'),
    "kind": (FeatureKind, f"kind {' or '.join(FeatureKind)}"),
    "shape": (Annotated[tuple[Size, ...], Meta(min_length=1)], "shape = [channels, height, width] or [width]"),
    "label": (dict[str, Any], "a [label] section"),
    "split": (dict[str, Any], "a [split] section"),
    "input": (dict[str, Any], "an [input] section"),
    "feature": (list[dict[str, Any]], "[[feature]] tables"),
}


def _read_entries(
    section: Mapping[str, Any], where: str, needed: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The entries of a section, checked and converted; InputError for one that is missing, unknown or wrong."""
    unknown = sorted(set(section) - {*needed, *optional})
    if unknown:
        known = ", ".join(sorted((*needed, *optional)))
        raise InputError(f"expected only {known} in {where}, found: {', '.join(unknown)}")
    found: dict[str, Any] = {}
    for name in (*needed, *(name for name in optional if name in section)):
        given = section.get(name)
        if name == "range":
            found[name] = check_range(given, where)
            continue
        kind, form = _ENTRIES[name]
        try:
            found[name] = msgspec.convert(given, kind)
        except msgspec.ValidationError:
            raise InputError(f"expected {form} in {where}, found: {given!r}") from None
    return found


def _read_schema(document: dict[str, Any], where: str) -> Schema:
    if document.get("version") != VERSION:
        raise InputError(f"expected version = {VERSION} in {where}, found: {document.get('version')!r}")
    rest = {name: value for name, value in document.items() if name != "version"}
    sections = _read_entries(rest, where, ("label",), ("split", "input", "feature"))
    label = _read_entries(sections["label"], f"{where}, [label]", ("column",), ("values", "range"))
    if ("values" in label) == ("range" in label):
        raise InputError(
            f"[label] in {where} needs either `values` (the classes) or `range` (of a number to predict), found: "
            + ("both" if "values" in label else "neither")
        )
    split = _read_entries(sections.get("split", {}), f"{where}, [split]", (), ("group", "time"))
    features, inputs = sections.get("feature", ()), {}
    if "input" in sections:
        inputs = _read_entries(sections["input"], f"{where}, [input]", ("shape",), ("range",))
    schema = Schema(
        label_column=label["column"],
        label_values=label.get("values", (label["column"],)),
        features=tuple(_read_feature(each, f"{where}, feature {i}") for i, each in enumerate(features, start=1)),
        input_shape=inputs.get("shape", ()),
        input_range=inputs.get("range"),
        group_column=split.get("group"),
        time_column=split.get("time"),
        target_range=label.get("range"),
    )
    return check_schema(schema, where)


def _read_feature(section: Mapping[str, Any], where: str) -> Feature:
    entries = _read_entries(section, where, ("column", "kind"), ("categories", "range"))
    column, kind = entries["column"], entries["kind"]
    if kind is FeatureKind.CATEGORICAL and "categories" not in entries:
        raise InputError(f"expected categories for a {kind} column in {where}, found none for: {column}")
    if kind is not FeatureKind.CATEGORICAL and "categories" in entries:
        raise InputError(f"expected no categories for a {kind} column in {where}, found categories for: {column}")
    if kind is not FeatureKind.NUMERIC and "range" in entries:
        raise InputError(f"expected no range for a {kind} column in {where}, found a range for: {column}")
    return Feature(**entries)


def check_schema(schema: Schema, where: str) -> Schema:
    """Return the schema unchanged; InputError if its entries contradict each other, or a needed one is missing."""
    if schema.n_class < 2 and schema.target_range is None:
        raise InputError(
            f"expected at least 2 label values in {where}, found: {schema.n_class}",
            hint="a classifier needs at least two classes: is it the right label column?",
        )
    if bool(schema.features) == bool(schema.input_shape):
        found = "both" if schema.features else "neither"
        raise InputError(f"expected either [[feature]] tables or [input] in {where}, found: {found}")
    if schema.group_column and schema.time_column:
        raise InputError(
            f"expected a group or a time column in {where}, found: both",
            hint="remove `group` or `time`: rows are held out either by group or by time",
        )
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
    values = schema.label_values if schema.target_range is None else None
    sections: list[tuple[str, dict[str, Any]]] = [
        ("[label]", {"column": schema.label_column, "values": values, "range": schema.target_range}),
        ("[split]", {"group": schema.group_column, "time": schema.time_column}),
        ("[input]", {"shape": schema.input_shape or None, "range": schema.input_range}),
    ]
    for feature in schema.features:
        categories = feature.categories if feature.kind is FeatureKind.CATEGORICAL else None
        entries = {"column": feature.column, "kind": feature.kind, "categories": categories, "range": feature.range}
        sections.append(("[[feature]]", entries))
    lines = [*(f"# {comment}".rstrip() for comment in comments), f"version = {VERSION}"]
    for title, entries in sections:
        written = [f"{name} = {format_toml_value(value)}" for name, value in entries.items() if value is not None]
        lines += ["", title, *written] if written else []
    return "\n".join(lines) + "\n"


def check_range(given: Any, where: str) -> Range:
    """The range as a pair of numbers, the lower one first; InputError if `given` is not a range."""
    ends = list(given) if isinstance(given, list | tuple) else []
    numbers = [float(end) for end in ends if isinstance(end, int | float) and not isinstance(end, bool)]
    if len(ends) != 2 or len(numbers) != 2 or not all(map(math.isfinite, numbers)) or not numbers[0] < numbers[1]:
        raise InputError(f"expected range = [low, high], two numbers, in {where}, found: {given!r}")
    return numbers[0], numbers[1]


def _check_distinct(values: tuple[str, ...], what: str, where: str) -> None:
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise InputError(f"expected distinct {what} in {where}, found more than once: {', '.join(repeated)}")


def compute_half_width(target_range: Range) -> float:
    """Half the width of the range: multiply a scaled distance by it to get the distance in the original unit."""
    return (target_range[1] - target_range[0]) / 2


def scale_targets(values: NDArray[Any], target_range: Range) -> NDArray[np.float32]:
    """Scale the numbers so that the range becomes -1 to 1."""
    scaled = (values.astype(np.float64) - sum(target_range) / 2) / compute_half_width(target_range)
    return scaled.astype(np.float32)


def unscale_targets(scaled: NDArray[Any], target_range: Range) -> NDArray[np.float64]:
    """Scale numbers from -1..1 back to the range in original units."""
    own: NDArray[np.float64] = scaled.astype(np.float64) * compute_half_width(target_range) + sum(target_range) / 2
    return own
