"""A site's data from whatever it has: a table, a folder of images, an .npz file or a function; split, and scaled."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.data.arrays import read_npz
from fedlog.data.federation import Federation, Records, Shard, validated
from fedlog.data.images import read_images
from fedlog.data.schema import Schema
from fedlog.data.split import Shares, Split, split_by_class, split_by_content, split_by_group, split_by_time
from fedlog.data.tables import TABLE_SUFFIXES, Encoder, fit_encoder, read_table
from fedlog.data.transforms import IDENTITY, Transform
from fedlog.errors import InputError


@dataclass(frozen=True, eq=False)
class Site:
    """A federation of one shard, and for a table the encoder that new rows must pass through too."""

    federation: Federation
    encoder: Encoder | None

    @property
    def shard(self) -> Shard:
        """The one shard."""
        return self.federation.shards[0]


@dataclass(frozen=True, eq=False)
class Arrays:
    """Inputs and labels from a source that needs no encoding."""

    inputs: Tensor  # (n, *input_shape) uint8 or float32
    labels: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None  # (n,) positions in `group_names`
    group_names: tuple[str, ...] = ()


class Preparation(Enum):
    """What may become of a row, its scaling and whether it is held out, because of the other rows."""

    TOGETHER = "scaled by the site's training rows; held out by class, group or time"
    ALONE = "nothing: numbers as they stand, pixels from -1 to 1; held out by its own content, or its group's name"


def load_site(
    source: str,
    schema: Schema,
    name: str,
    key: Key,
    shares: Shares | None = None,
    preparation: Preparation = Preparation.TOGETHER,
) -> Site:
    """The site behind `source`: a table (.csv, .tsv, .parquet), a folder of images, an .npz, or `module:function`.

    The split depends on the rows and on the key alone, so that a site that restarts finds the same rows held out.
    """
    if preparation is Preparation.ALONE:
        refuse_split_by_time(schema)
    shares = shares or Shares()
    path = Path(source)
    if path.suffix in TABLE_SUFFIXES:
        return _table_site(path, schema, name, key, shares, preparation)
    if path.suffix == ".npz":
        arrays = _read_npz(path, schema)
    elif path.is_dir():
        arrays = Arrays(*read_images(path, schema))
    elif ":" in source and not path.exists():
        arrays = _call(source, schema)
    else:
        raise InputError(
            f"expected a .csv, .tsv, .parquet or .npz file, a folder of images, or package.module:function, "
            f"found: {source}"
        )
    if preparation is Preparation.ALONE:
        split = _split_alone(arrays, shares, key)
        return Site(_federation(name, schema, arrays, split, _public_transform(arrays.inputs)), None)
    split = _split(arrays.labels, arrays.groups, None, shares, key)
    return Site(validated(_federation(name, schema, arrays, split, _image_transform(arrays.inputs, split))), None)


def refuse_split_by_time(schema: Schema) -> None:
    """Nothing; InputError for a schema under which rows cannot be held out each by itself."""
    if schema.time_column is not None:
        raise InputError(
            "where single records are protected, whether a row is held out must not depend on the others, and by time "
            f"it does: column {schema.time_column}",
            hint="a schema without `time`: rows are then held out by a hash of their own content",
        )


def _table_site(path: Path, schema: Schema, name: str, key: Key, shares: Shares, preparation: Preparation) -> Site:
    if not schema.features:
        raise InputError(f"expected [[feature]] tables in the schema for the table {path}, found [input]")
    table = read_table(path, schema)
    if preparation is Preparation.ALONE:
        encoder = fit_encoder(schema, table.columns, np.arange(0))  # of no rows: numbers keep their units
        arrays = Arrays(encoder.encode(table.columns), table.labels, table.groups, table.group_names)
        return Site(_federation(name, schema, arrays, _split_alone(arrays, shares, key), IDENTITY), encoder)
    split = _split(table.labels, table.groups, table.times, shares, key)
    encoder = fit_encoder(schema, table.columns, split.train)
    arrays = Arrays(encoder.encode(table.columns), table.labels, table.groups, table.group_names)
    return Site(validated(_federation(name, schema, arrays, split, IDENTITY)), encoder)


def _split(
    labels: NDArray[np.int64],
    groups: NDArray[np.int64] | None,
    times: NDArray[np.float64] | None,
    shares: Shares,
    key: Key,
) -> Split:
    if groups is not None:
        return split_by_group(groups, shares, key)
    if times is not None:
        return split_by_time(times, shares)
    return split_by_class(labels, shares, key)


def _split_alone(arrays: Arrays, shares: Shares, key: Key) -> Split:
    """By each row's input and label; by its group's name where groups stay whole."""
    if arrays.groups is not None:
        return split_by_content((arrays.group_names[group].encode() for group in arrays.groups), shares, key)
    inputs = arrays.inputs.numpy()
    contents = (row.tobytes() + int(label).to_bytes(8, "big") for row, label in zip(inputs, arrays.labels, strict=True))
    return split_by_content(contents, shares, key)


def _federation(name: str, schema: Schema, arrays: Arrays, split: Split, transform: Transform) -> Federation:
    """One shard whose training pool holds the training rows first and the validation rows after them."""
    kept = np.concatenate([split.train, split.validation])
    n_train = len(split.train)
    shard = Shard(
        name,
        train=torch.arange(n_train),
        test=torch.arange(len(split.test)),
        validation=torch.arange(n_train, len(kept)),
    )
    return Federation(
        name=name,
        n_class=schema.n_class,
        input_shape=schema.shape,
        train=_records(arrays, kept),
        test=_records(arrays, split.test),
        shards=(shard,),
        transform=transform,
        class_names=schema.label_values,
    )


def _records(arrays: Arrays, rows: NDArray[np.int64]) -> Records:
    at = torch.from_numpy(rows)
    users = None if arrays.groups is None else torch.from_numpy(arrays.groups)[at]
    return Records(arrays.inputs[at], torch.from_numpy(arrays.labels)[at], users)


def _public_transform(inputs: Tensor) -> Transform:
    """Pixels from -1 to 1; arrays of floats are left as they are."""
    if inputs.dtype != torch.uint8:
        return IDENTITY
    return Transform(mean=(0.5,) * inputs.shape[1], std=(0.5,) * inputs.shape[1])


def _image_transform(inputs: Tensor, split: Split) -> Transform:
    """Per-channel scaling of images by the site's own training rows; arrays of floats are left as they are."""
    if inputs.dtype != torch.uint8:
        return IDENTITY
    pixels = inputs[torch.from_numpy(split.train)].to(torch.float64) / 255
    dims = [dim for dim in range(pixels.ndim) if dim != 1]
    std = pixels.std(dim=dims, correction=0)
    # A channel without spread keeps its unit, as a column without spread does.
    std = torch.where(std > 1e-6, std, torch.ones_like(std))
    return Transform(mean=tuple(pixels.mean(dim=dims).tolist()), std=tuple(std.tolist()))


def _read_npz(path: Path, schema: Schema) -> Arrays:
    stored = read_npz(path, ("inputs", "labels"), optional=("groups",))
    return _arrays(stored["inputs"], stored["labels"], stored.get("groups"), schema, str(path))


def _call(source: str, schema: Schema) -> Arrays:
    """What `package.module:function` returns: Records, or (inputs, labels) or (inputs, labels, groups)."""
    module, _, name = source.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"expected a function that can be imported, found {source}: {error}") from None
    if not callable(function):
        raise InputError(f"expected a function, found {type(function).__name__}: {source}")
    given: Any = function()
    if isinstance(given, Records):
        users = None if given.users is None else given.users.numpy()
        return _arrays(given.inputs.numpy(), given.labels.numpy(), users, schema, source)
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise InputError(f"expected Records or (inputs, labels[, groups]) from {source}, found: {type(given).__name__}")
    groups = np.asarray(given[2]) if len(given) == 3 else None
    return _arrays(np.asarray(given[0]), np.asarray(given[1]), groups, schema, source)


def _arrays(
    inputs: NDArray[Any], labels: NDArray[Any], groups: NDArray[Any] | None, schema: Schema, where: str
) -> Arrays:
    if not schema.input_shape:
        raise InputError(f"expected [input] shape in the schema for {where}, found [[feature]] tables")
    if labels.ndim != 1 or len(labels) == 0:
        raise InputError(f"expected at least one label in an array of one dimension in {where}, found: {labels.shape}")
    if inputs.shape != (len(labels), *schema.input_shape):
        expected = (len(labels), *schema.input_shape)
        raise InputError(f"expected inputs of shape {expected} in {where}, found: {inputs.shape}")
    if inputs.dtype != np.uint8 and inputs.dtype.kind not in "fiu":
        raise InputError(f"expected inputs that are numbers in {where}, found: {inputs.dtype}")
    if groups is not None and groups.shape != labels.shape:
        raise InputError(f"expected one group a record in {where}, found {groups.shape} for {labels.shape} labels")
    if inputs.dtype.kind == "f" and not np.isfinite(inputs).all():
        row = int(np.flatnonzero(~np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1))[0])
        raise InputError(f"expected finite inputs in {where}, found none in row {row + 1}")
    values = inputs if inputs.dtype == np.uint8 else inputs.astype(np.float32)
    tensor, codes = torch.from_numpy(np.ascontiguousarray(values)), _label_codes(labels, schema, where)
    if groups is None:
        return Arrays(tensor, codes)
    names, places = np.unique(groups, return_inverse=True)
    return Arrays(tensor, codes, places.astype(np.int64), tuple(str(name) for name in names.tolist()))


def _label_codes(labels: NDArray[Any], schema: Schema, where: str) -> NDArray[np.int64]:
    """Positions in the schema's label values: whole numbers are positions already, texts are looked up."""
    if labels.dtype.kind in "iu":
        bad = (labels < 0) | (labels >= schema.n_class)
        codes = labels.astype(np.int64)
        expected = f"a label from 0 to {schema.n_class - 1}"
    elif labels.dtype.kind == "U":
        place = {value: position for position, value in enumerate(schema.label_values)}
        codes = np.array([place.get(str(label), -1) for label in labels], dtype=np.int64)
        bad = codes < 0
        expected = f"one of the label values {', '.join(schema.label_values)}"
    else:
        raise InputError(f"expected labels that are whole numbers or texts in {where}, found: {labels.dtype}")
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise InputError(f"expected {expected} in row {row + 1} of {where}, found: {labels[row]}")
    return codes
