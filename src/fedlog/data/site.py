"""Load a site's data (a table, a folder of images, an .npz file or a function), split them and scale them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.data.arrays import Arrays, keep_usable_records, read_npz
from fedlog.data.federation import Federation, Records, Shard, check_federation
from fedlog.data.images import MODES, read_images
from fedlog.data.rows import BadRowPolicy
from fedlog.data.schema import FeatureKind, Schema
from fedlog.data.split import HeldOutShares, Split, split_by_class, split_by_content, split_by_group, split_by_time
from fedlog.data.tables import TABLE_SUFFIXES, Table, TableEncoder, fit_encoder, read_table
from fedlog.data.transforms import IDENTITY, Transform
from fedlog.errors import InputError
from fedlog.files.names import hint_at_missing_path, import_callable


@dataclass(frozen=True, eq=False)
class Site:
    """The data of one site, as a federation with a single client; for a table also the encoder for new rows.

    `left_out` and `warning` tell the people at the site about rows left out and about values changed in reading.
    """

    federation: Federation
    encoder: TableEncoder | None
    left_out: str | None = None  # a sentence about rows that were left out
    warning: str | None = None  # a warning and a hint, if values were changed when they were read

    @property
    def shard(self) -> Shard:
        """The positions of the site's training, validation and test records: the federation's only shard."""
        return self.federation.shards[0]


class RowPreparation(Enum):
    """Whether the scaling and the split of a row depend on the site's other rows (TOGETHER) or not (ALONE)."""

    TOGETHER = "scaled with the site's training rows; held out by class, group or time"
    ALONE = "scaled by fixed ranges or not at all; held out by a hash of the row, or of its group's name"


# The split of a site does not depend on a run's seed, so that the same rows are held out in every run.
SPLIT_SEED = 0


def make_split_key(name: str, seed: int = SPLIT_SEED) -> Key:
    """The key that decides which rows of a site are held out, the same in a deployment and in the simulator."""
    return Key(seed).child("site", name)


def load_site(
    source: str,
    schema: Schema,
    name: str,
    key: Key,
    shares: HeldOutShares | None = None,
    preparation: RowPreparation = RowPreparation.TOGETHER,
    bad_rows: BadRowPolicy = BadRowPolicy.REFUSED,
) -> Site:
    """The data of a site: `source` is a table (.csv, .tsv, .parquet), folder of images, .npz or `module:function`.

    The split depends only on the rows and the key, so a site that restarts holds out the same rows.
    """
    shares = shares or HeldOutShares()
    path = Path(source)
    if path.suffix in TABLE_SUFFIXES:
        if not schema.features:
            raise InputError(
                f"the schema describes images or signals ([input]), but {path} is a table",
                hint="draft a schema for the table: `fedlog federate schema FILE`",
            )
        table, left_out = read_table(path, schema, bad_rows)
        return replace(make_site(table, schema, name, key, shares, preparation), left_out=left_out)
    if path.suffix == ".npz":
        stored = read_npz(path, ("inputs", "labels"), optional=("groups",))
        parts = stored["inputs"], stored["labels"], stored.get("groups")
        arrays, left_out = keep_usable_records(*parts, schema, str(path), bad_rows)
    elif path.is_dir():
        arrays, left_out = read_images(path, schema, bad_rows)
    elif ":" in source and not path.exists():
        arrays, left_out = keep_usable_records(*_load_user_arrays(source), schema, source, bad_rows)
    else:
        raise InputError(
            f"expected a .csv, .tsv, .parquet or .npz file, a folder of images, or package.module:function, "
            f"found: {source}",
            hint="convert it to one of these" if path.exists() else hint_at_missing_path(path),
        )
    converted = _convert_by_schema(arrays.inputs, schema)
    warning = _describe_changed_values(arrays.inputs, converted, schema)
    if preparation is RowPreparation.ALONE or schema.input_range is not None:
        arrays = replace(arrays, inputs=converted)
    site = make_site(arrays, schema, name, key, shares, preparation)
    return replace(site, left_out=left_out, warning=warning)


def make_empty_site(schema: Schema, name: str) -> Site:
    """A site without rows, which in a private run replaces a site whose data cannot be read."""
    none = np.arange(0)
    inputs = _convert_by_schema(torch.zeros((0, *schema.shape)), schema)
    numeric = sum(feature.kind is FeatureKind.NUMERIC for feature in schema.features)
    encoder = TableEncoder(schema, (0.0,) * numeric, (0.0,) * numeric, (1.0,) * numeric) if schema.features else None
    targets = None if schema.target_range is None else none.astype(np.float32)
    arrays = Arrays(inputs, none.astype(np.int64), targets=targets)
    return Site(
        _make_federation(name, schema, arrays, Split(none, none, none), _make_fixed_transform(inputs, schema)), encoder
    )


def refuse_split_by_time(schema: Schema) -> None:
    """Raise an InputError if the schema holds out the latest rows: these are not known without a look at all rows."""
    if schema.time_column is not None:
        raise InputError(
            f"--privacy record cannot be used with rows held out by time (column {schema.time_column}): whether a row "
            "is held out would depend on other rows",
            hint="remove `time` from the schema; rows are then held out by a hash of their content",
        )


def make_site(
    data: Table | Arrays,
    schema: Schema,
    name: str,
    key: Key,
    shares: HeldOutShares,
    preparation: RowPreparation = RowPreparation.TOGETHER,
) -> Site:
    """The site with these rows, split by group, time or class as the schema says; the key decides what is random."""
    if preparation is RowPreparation.ALONE:
        refuse_split_by_time(schema)
        encoder, arrays = _encode_table(data, schema, np.arange(0))  # fitted on no rows, so numbers keep their units
        split, transform = _split_arrays_by_content(arrays, shares, key), _make_fixed_transform(arrays.inputs, schema)
        return Site(_make_federation(name, schema, arrays, split, transform), encoder)
    times = data.times if isinstance(data, Table) else None
    return make_site_with_split(data, schema, name, split_rows(data.labels, data.groups, times, shares, key))


def make_site_with_split(data: Table | Arrays, schema: Schema, name: str, split: Split) -> Site:
    """The site with these rows and this split; only the training rows decide how rows are scaled.

    Arrays are scaled by the schema's range. Without a range, bytes are scaled with the training rows, and other
    numbers are not scaled.
    """
    encoder, arrays = _encode_table(data, schema, split.train)
    if schema.input_range is None:
        transform = _fit_image_transform(arrays.inputs, split)
    else:
        transform = _make_fixed_transform(arrays.inputs, schema)
    return Site(check_federation(_make_federation(name, schema, arrays, split, transform)), encoder)


def _encode_table(data: Table | Arrays, schema: Schema, rows: NDArray[np.int64]) -> tuple[TableEncoder | None, Arrays]:
    """An encoder fitted on these `rows` of a table, and the encoded table.

    Arrays need no encoder: for them None and the same arrays are returned.
    """
    if isinstance(data, Arrays):
        return None, data
    encoder = fit_encoder(schema, data.columns, rows)
    inputs = encoder.encode(data.columns)
    return encoder, Arrays(inputs, data.labels, data.groups, data.group_names, data.targets)


def split_rows(
    labels: NDArray[np.int64],
    groups: NDArray[np.int64] | None,
    times: NDArray[np.float64] | None,
    shares: HeldOutShares,
    key: Key,
) -> Split:
    """Split rows into training, validation and test: by group if there are groups, else by time, else by class."""
    if groups is not None:
        return split_by_group(groups, shares, key)
    if times is not None:
        return split_by_time(times, shares)
    return split_by_class(labels, shares, key)


def _split_arrays_by_content(arrays: Arrays, shares: HeldOutShares, key: Key) -> Split:
    """Split rows by a hash of each row's input and label or, if there are groups, by a hash of the group's name."""
    if arrays.groups is not None:
        return split_by_content((arrays.group_names[group].encode() for group in arrays.groups), shares, key)
    inputs = arrays.inputs.numpy()
    contents = (row.tobytes() + int(label).to_bytes(8, "big") for row, label in zip(inputs, arrays.labels, strict=True))
    return split_by_content(contents, shares, key)


def _make_federation(name: str, schema: Schema, arrays: Arrays, split: Split, transform: Transform) -> Federation:
    """A federation with a single client; its training pool has the training rows, then the validation rows."""
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
        train=_select_records(arrays, kept),
        test=_select_records(arrays, split.test),
        shards=(shard,),
        transform=transform,
        class_names=schema.label_values,
        schema=None if schema.target_range is None else schema,
    )


def _select_records(arrays: Arrays, rows: NDArray[np.int64]) -> Records:
    at = torch.from_numpy(rows)
    users = None if arrays.groups is None else torch.from_numpy(arrays.groups)[at]
    targets = None if arrays.targets is None else torch.from_numpy(arrays.targets)[at]
    return Records(arrays.inputs[at], torch.from_numpy(arrays.labels)[at], users, targets, at)


def _convert_by_schema(inputs: Tensor, schema: Schema) -> Tensor:
    """The inputs limited to the schema's range; without a range, images as bytes and other arrays as floats.

    Numbers of an image that are not bytes are rounded to whole numbers from 0 to 255. The type depends on the schema
    and not on the file, where a single value such as 0.5 can change the type of all numbers.
    """
    if schema.input_range is not None:
        return inputs.float().clamp(*schema.input_range)
    if _has_images(schema):
        return inputs if inputs.dtype == torch.uint8 else inputs.round().clamp(0, 255).to(torch.uint8)
    return inputs.float()


def _has_images(schema: Schema) -> bool:
    return len(schema.shape) == 3 and schema.shape[0] in MODES


def _describe_changed_values(inputs: Tensor, converted: Tensor, schema: Schema) -> str | None:
    """A warning with a hint if the `converted` inputs differ from the original inputs; None if they are equal."""
    changed = 0 if converted is inputs else int((inputs != converted).sum())
    if changed == 0:
        return None
    what = (
        f"{100 * changed / inputs.numel():.2g} % of the numbers in the {'images' if _has_images(schema) else 'arrays'}"
    )
    if schema.input_range is not None:
        low, high = schema.input_range
        return (
            f"{what} are outside the schema's range and are moved to its ends, {low:g} and {high:g}\n"
            "hint: rescale them, or agree with all sites on another `range` under [input] in the schema"
        )
    return (
        f"{what} are not whole numbers from 0 to 255; --privacy record rounds them, so that numbers from 0 to 1 become "
        "0 or 1\n"
        "hint: agree with all sites on their `range`, such as [0, 1], under [input] in the schema; or store pixels as "
        "uint8"
    )


def _make_fixed_transform(inputs: Tensor, schema: Schema) -> Transform:
    """The scaling to -1..1 from the schema's range, or from 0..255 for bytes; no scaling for floats without a range."""
    if schema.input_range is not None:
        low, high = schema.input_range
    elif inputs.dtype == torch.uint8:
        low, high = 0.0, 1.0  # bytes are divided by 255 first
    else:
        return IDENTITY
    channels = inputs.shape[1]
    return Transform(mean=((low + high) / 2,) * channels, std=((high - low) / 2,) * channels)


def _fit_image_transform(inputs: Tensor, split: Split) -> Transform:
    """The scaling of each channel by mean and std of the site's training images; no scaling for arrays of floats."""
    if inputs.dtype != torch.uint8:
        return IDENTITY
    pixels = inputs[torch.from_numpy(split.train)].to(torch.float64) / 255
    dims = [dim for dim in range(pixels.ndim) if dim != 1]
    std = pixels.std(dim=dims, correction=0)
    # A channel without spread is not divided, as a column without spread is not.
    std = torch.where(std > 1e-6, std, torch.ones_like(std))
    return Transform(mean=tuple(pixels.mean(dim=dims).tolist()), std=tuple(std.tolist()))


def _load_user_arrays(source: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """The inputs, labels and groups (or None) that a user's function returns, as a tuple or as `Records`."""
    given: Any = import_callable(source, "data source")()
    if isinstance(given, Records):
        users = None if given.users is None else given.users.numpy()
        return given.inputs.numpy(), given.labels.numpy(), users
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise InputError(
            f"{source} returned neither `Records` nor a tuple of two or three arrays, but: {type(given).__name__}",
            hint="return (inputs, labels) or (inputs, labels, groups)",
        )
    groups = np.asarray(given[2]) if len(given) == 3 else None
    return np.asarray(given[0]), np.asarray(given[1]), groups
