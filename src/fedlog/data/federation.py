"""The data of a federation: two pools of records, and for each client the positions it holds in them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.data.transforms import Transform
from fedlog.errors import InputError


@dataclass(frozen=True, eq=False)
class Records:
    """A pool of records in memory."""

    inputs: Tensor  # (n, *input_shape): uint8 for images, float32 otherwise
    labels: Tensor  # (n,) int64
    users: Tensor | None = None  # (n,) int64: the natural user of each record, where there is one

    def __len__(self) -> int:
        return int(self.labels.shape[0])

    def at(self, positions: Tensor) -> Records:
        """The records at these positions, in their order."""
        users = None if self.users is None else self.users[positions]
        return Records(self.inputs[positions], self.labels[positions], users)


@dataclass(frozen=True, eq=False)
class Shard:
    """What one client holds: positions in the pools of its federation."""

    name: str
    train: Tensor  # (n_i,) int64 positions in Federation.train
    test: Tensor  # int64 positions in Federation.test
    validation: Tensor  # int64 positions in Federation.train, disjoint from `train`; may be empty


@dataclass(frozen=True, eq=False)
class Federation:
    """Everything a run needs to know about its data."""

    name: str
    n_class: int
    input_shape: tuple[int, ...]  # as the body sees it, e.g. (1, 28, 28)
    train: Records
    test: Records
    shards: tuple[Shard, ...]
    transform: Transform
    class_names: tuple[str, ...]


def validated(federation: Federation) -> Federation:
    """The same federation, after checking that it can be trained and evaluated.

    Every client needs a training record, and a test record too: the accuracy reported is a mean over clients.
    """
    where = f"data set {federation.name}"
    if len(federation.class_names) != federation.n_class:
        raise InputError(f"{where}: {federation.n_class} classes, but class names: {len(federation.class_names)}")
    if not federation.shards:
        raise InputError(f"{where}: no clients")
    _check_records(federation.train, federation, f"{where}, training records")
    _check_records(federation.test, federation, f"{where}, test records")
    _check_transform(federation.transform, federation.input_shape, where)
    names: list[object] = [shard.name for shard in federation.shards]
    for at, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InputError(f"{where}: client {at} needs a name, a text that is not empty; found: {name!r}")
    if len(set(names)) != len(names):
        repeated = sorted({str(name) for name in names if names.count(name) > 1})
        raise InputError(f"{where}: client names must differ; repeated: {', '.join(repeated)}")
    for shard in federation.shards:
        _check_shard(shard, federation, f"{where}, client {shard.name}")
    return federation


def _check_records(records: Records, federation: Federation, where: str) -> None:
    if records.labels.dtype != torch.int64 or records.labels.ndim != 1:
        raise InputError(f"{where}: labels must be int64 of shape (n,); found {_described(records.labels)}")
    if tuple(records.inputs.shape) != (len(records), *federation.input_shape):
        expected = (len(records), *federation.input_shape)
        raise InputError(f"{where}: inputs must have shape {expected}; found {_described(records.inputs)}")
    if records.inputs.dtype not in (torch.uint8, torch.float32):
        raise InputError(f"{where}: inputs must be uint8 or float32; found {_described(records.inputs)}")
    if records.users is not None and records.users.shape != records.labels.shape:
        raise InputError(f"{where}: users must have shape ({len(records)},); found {_described(records.users)}")
    outside = (records.labels < 0) | (records.labels >= federation.n_class)
    if bool(outside.any()):
        first = int(outside.nonzero()[0])
        label = int(records.labels[first])
        raise InputError(f"{where}: labels must lie in 0..{federation.n_class - 1}; record {first} has label: {label}")
    if records.inputs.dtype == torch.float32 and not bool(torch.isfinite(records.inputs).all()):
        finite = torch.isfinite(records.inputs.reshape(len(records), -1)).all(dim=1)
        raise InputError(f"{where}: inputs must be finite; not so in record: {int((~finite).nonzero()[0])}")


def _check_transform(transform: Transform, input_shape: tuple[int, ...], where: str) -> None:
    mean, std, channels = transform.mean, transform.std, input_shape[0] if input_shape else 1
    if not (isinstance(mean, tuple) and isinstance(std, tuple)):
        raise InputError(f"{where}: the transform's mean and std must be tuples of numbers: {mean} and {std}")
    if len(mean) != len(std) or len(mean) not in (0, 1, channels):
        raise InputError(
            f"{where}: the transform needs a mean and a std for each of {channels} channels; found: {len(mean)} and "
            f"{len(std)}"
        )
    if not all(math.isfinite(m) and math.isfinite(s) and s > 0 for m, s in zip(mean, std, strict=True)):
        raise InputError(f"{where}: the transform's means must be finite and its stds positive: {mean} and {std}")
    if transform.crop_padding < 0 or (transform.augments and len(input_shape) != 3):
        raise InputError(
            f"{where}: only images (channels, height, width) can be cropped, by 0 or more, or flipped; crop "
            f"{transform.crop_padding}, records of shape: {input_shape}"
        )


def _check_shard(shard: Shard, federation: Federation, where: str) -> None:
    pools = {"train": federation.train, "test": federation.test, "validation": federation.train}
    for part, pool in pools.items():
        positions: Tensor = getattr(shard, part)
        if positions.dtype != torch.int64 or positions.ndim != 1:
            raise InputError(f"{where}: {part} positions must be int64 of shape (n,); found {_described(positions)}")
        if len(positions) == 0 and part != "validation":
            raise InputError(f"{where}: no {part} records", hint="use fewer clients or another partition")
        if len(positions) and not (int(positions.min()) >= 0 and int(positions.max()) < len(pool)):
            raise InputError(f"{where}: {part} positions must lie in 0..{len(pool) - 1}")
    if bool(torch.isin(shard.validation, shard.train).any()):
        raise InputError(f"{where}: training and validation records overlap")


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
