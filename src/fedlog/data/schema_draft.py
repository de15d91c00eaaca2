"""Draft a schema from one site's data, for people to review, with the reason for each column left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from fedlog.data.arrays import read_npz
from fedlog.data.images import list_class_folders, list_images, read_image_shape
from fedlog.data.schema import Feature, FeatureKind, Schema, check_schema, dump_schema
from fedlog.data.tables import NO_ROWS_HINT, TABLE_SUFFIXES, read_frame
from fedlog.errors import InputError
from fedlog.files.names import did_you_mean, hint_at_missing_path

LABEL_NAMES = ("label", "target", "class", "outcome", "y")
# A text column with more different values than this is an identifier or free text, not a category.
MOST_CATEGORIES = 50
# A column of whole numbers with at most this many different values is probably a code.
FEW_CODES = 3
MOST_CLASSES = 1000
# Noted where single rows are protected.
SCHEMA_FROM_ROWS = (
    "classes, categories and ranges were taken from these rows, which no privacy guarantee covers; give a schema that "
    "was agreed without them"
)


@dataclass(frozen=True)
class DraftOptions:
    """What the user says about a table: the label, group, time and text columns, and whether a number is predicted.

    If `label` is None, the label column is guessed. If another column is None, the table has no such column.
    """

    label: str | None = None
    group: str | None = None
    time: str | None = None
    text: str | None = None  # a column of free text, which becomes the only feature
    predicts_number: bool = False  # the label is a number to predict; the draft then has ranges of columns


def draft_schema(source: Path, options: DraftOptions) -> str:
    """The text of a schema file for this table, folder of images or .npz file, with a request to review it."""
    notes: tuple[str, ...] = ()
    if source.is_dir():
        schema = draft_image_schema(source)
    elif source.suffix == ".npz":
        schema = draft_array_schema(source)
    elif source.suffix in TABLE_SUFFIXES:
        frame = read_frame(source)
        label = options.label or find_label_column(frame) or frame.columns[-1]
        schema, notes = draft_table_schema(frame, str(source), label, options)
        notes = notes if options.label else (f"The label column was guessed: {label}.", *notes)
    else:
        raise InputError(
            f"expected a .csv, .tsv, .parquet or .npz file or a folder of images, found: {source}",
            hint="convert it to one of these" if source.exists() else hint_at_missing_path(source),
        )
    if schema.input_shape:
        notes = (*notes, "If images or arrays are not bytes, add their range, for example: range = [0.0, 1.0]")
    comments = (
        f"Drafted from one site's data ({source.name}). PLEASE REVIEW before it goes to the other sites:",
        "- Are all label values and categories of ALL sites listed? An unlisted category becomes 'other';",
        "  an unlisted label is refused.",
        "- Does a listed value reveal something that should not leave this site? Remove it.",
        "- Is the label the right column, and is every feature one that may be used for prediction?",
        '- [split] group = "column" keeps a person\'s rows together; time = "column" tests on the latest rows.',
        *(f"- {note}" for note in notes),
    )
    return dump_schema(check_schema(schema, str(source)), comments)


def draft_table_schema(
    frame: pl.DataFrame, where: str, label: str, options: DraftOptions, sites: int = 1
) -> tuple[Schema, tuple[str, ...]]:
    """A schema for a table with this label column, and a sentence for each column that was left out.

    `sites` is the number of sites whose rows the table has.
    """
    if frame.height == 0:
        raise InputError(f"expected at least one row in {where}, found a header and no rows", hint=NO_ROWS_HINT)
    for name in (label, options.group, options.time, options.text):
        if name is not None and name not in frame.columns:
            raise InputError(
                f"expected a column {name} in {where}, found: {', '.join(frame.columns)}",
                hint=did_you_mean(name, frame.columns, "name one of these columns"),
            )
    taken = [name for name in (label, options.group, options.time) if name]
    features, notes = _choose_features(frame, taken, options, sites)
    if not options.predicts_number:
        values = sort_naturally(frame[label].drop_nulls().cast(pl.String).str.strip_chars().unique().to_list())
        if len(values) > MOST_CLASSES:
            raise InputError(
                f"expected a label column with at most {MOST_CLASSES} values, found {len(values)} in: {label}",
                hint="name the right column with --label; if it is a number to predict, add --number",
            )
        return Schema(label, tuple(values), features, (), options.group, options.time), notes
    number = _find_range(frame[label])
    if number is None:
        raise InputError(
            f"the label column {label} of {where} cannot be a number to predict: its values are all equal, or some are "
            "not numbers",
            hint="name the right column with --label; if it holds classes, leave out --number",
        )
    ranged = tuple(
        replace(each, range=_find_range(frame[each.column])) if each.kind is FeatureKind.NUMERIC else each
        for each in features
    )
    advice = "The ranges are those of these rows. Replace them by ranges that are known without looking at any rows."
    return Schema(label, (label,), ranged, (), options.group, options.time, number), (advice, *notes)


def _choose_features(
    frame: pl.DataFrame, taken: list[str], options: DraftOptions, sites: int
) -> tuple[tuple[Feature, ...], tuple[str, ...]]:
    """The features of a table, and notes on the columns that were left out.

    If the options name a column of text, it is the only feature. Otherwise all usable columns outside `taken` are.
    """
    if options.text is None:
        return draft_features(frame.drop(taken), sites)
    others = [name for name in frame.columns if name not in (*taken, options.text)]
    notes = (f"Left out beside the text: {', '.join(others)}.",) if others else ()
    return (Feature(options.text, FeatureKind.TEXT),), notes


def _find_range(series: pl.Series) -> tuple[float, float] | None:
    """The smallest and the largest number in a column; None if all values are equal, or one is not a number."""
    numbers = series.drop_nulls().cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)
    if numbers.null_count() or not len(numbers) or numbers.n_unique() < 2:
        return None
    ends = numbers.min(), numbers.max()
    return float(ends[0]), float(ends[1])  # type: ignore[arg-type]


def draft_features(frame: pl.DataFrame, sites: int = 1) -> tuple[tuple[Feature, ...], tuple[str, ...]]:
    """The features among the columns of a table of `sites` sites, and a sentence for each column left out."""
    drafted = [(series.name, _draft_column(series, sites)) for series in frame]
    features = tuple(found for _, found in drafted if isinstance(found, Feature))
    return features, tuple(f"Left out: {name} ({found})." for name, found in drafted if isinstance(found, str))


def _draft_column(series: pl.Series, sites: int) -> Feature | str:
    """The feature of a column, or the reason to leave the column out."""
    known = series.drop_nulls()
    if len(known) == 0:
        return "no values"
    if known.dtype.is_temporal():
        return "a date or time"
    texts = known.cast(pl.String).str.strip_chars()
    distinct = texts.n_unique()
    numbers = texts.cast(pl.Float64, strict=False)
    if known.dtype != pl.Boolean and numbers.null_count() == 0:
        whole = bool((numbers == numbers.floor()).all())
        if whole and distinct > FEW_CODES and _looks_like_identifier(series.name, texts, sites):
            return "looks like an identifier"
        if not whole or distinct > FEW_CODES:
            return Feature(series.name, FeatureKind.NUMERIC)
    if distinct > MOST_CATEGORIES or (distinct > FEW_CODES and distinct > len(known) / 2):
        if 0 < numbers.null_count() < len(known) / 2:  # no value of a row is shown: a schema goes to other sites
            return f"a column of numbers, but {numbers.null_count()} of its {len(known)} values are not numbers"
        return f"{distinct} different texts: an identifier or free text"
    return Feature(series.name, FeatureKind.CATEGORICAL, tuple(sort_naturally(texts.unique().to_list())))


def _looks_like_identifier(name: str, texts: pl.Series, sites: int) -> bool:
    """Whether the column's name is usual for identifiers, and no value occurs more often than there are sites."""
    called = name.lower().endswith("id") or name.lower() in ("", "index") or name.lower().startswith("unnamed:")
    return called and int(texts.unique_counts().to_numpy().max()) <= sites


def find_label_column(frame: pl.DataFrame) -> str | None:
    """The column with a usual name for labels (label, target, class, ...); None if there is none."""
    for name in LABEL_NAMES:
        for column in frame.columns:
            if column.lower() == name:
                return column
    return None


def sort_naturally(texts: Iterable[str]) -> list[str]:
    """The texts sorted as people do: numbers by value (9 before 10), then other texts."""
    return sorted(texts, key=_make_natural_sort_key)


def _make_natural_sort_key(text: str) -> tuple[float, str]:
    try:
        return (float(text), text)
    except ValueError:
        return (float("inf"), text)


def draft_image_schema(folder: Path) -> Schema:
    """A schema for a folder of images by class: the names of the classes, and the shape of the first image."""
    classes = list_class_folders(folder)
    first = next((path for name in classes for path in list_images(folder / name)), None)
    if first is None:
        raise InputError(
            f"expected images in sub-folders named by class, found none in: {folder}",
            hint=f"{folder.name}/CLASS/IMAGE.png, or .jpg",
        )
    return Schema("folder", classes, input_shape=read_image_shape(first))


def draft_array_schema(path: Path) -> Schema:
    """A schema for an .npz file: the label values, and the shape of one input."""
    stored = read_npz(path, ("inputs", "labels"))
    inputs, labels = stored["inputs"], stored["labels"]
    if labels.dtype.kind in "iu":
        values = tuple(str(value) for value in range(int(labels.max(initial=-1)) + 1))
    else:
        values = tuple(sorted(str(value) for value in np.unique(labels)))
    return Schema("labels", values, input_shape=tuple(inputs.shape[1:]))
