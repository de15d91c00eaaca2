"""Read a LEAF folder as a federation with one client for each user.

LEAF (https://leaf.cmu.edu) writes `data/all_data/*.json`, and after its own split `data/train` and `data/test`. Each
JSON file has `users`, `num_samples` and `user_data`: for each user `x` (numbers, or names of image files) and `y`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard, check_federation
from fedlog.data.images import read_image
from fedlog.data.partition import by_user, hold_out
from fedlog.data.sources import sha256_of
from fedlog.data.transforms import IDENTITY, Transform
from fedlog.errors import InputError
from fedlog.files.json_text import parse_json

# LEAF's CelebA model uses images of 84 x 84 pixels and three channels.
IMAGE_SIZE = 84
IMAGE_FOLDER = Path("raw") / "img_align_celeba"
IMAGE_TRANSFORM = Transform(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
TEST_FRACTION = 0.2
# The test split of all_data does not depend on a run's seed: test records are the same in every run.
SPLIT_KEY = Key(0).child("leaf", "test split")


@dataclass(frozen=True, eq=False)
class _Table:
    """Records of several users; image files are not read yet."""

    users: tuple[str, ...]
    inputs: list[Any]
    labels: list[int]
    owner: list[int]
    classes: frozenset[int]
    """All labels in the folder, also those of users who are left out."""


def read_leaf(folder: Path, *, users: int | None = None, image_size: int = IMAGE_SIZE) -> Federation:
    """A federation with one client for each user of the folder, or for its first `users` users.

    LEAF's `train` and `test` are used if they exist; otherwise 20 % of each user's records in `all_data` are for test.
    """
    parts = leaf_parts(folder)
    data = parts[0].parent
    if len(parts) == 2:
        train, test = _read_table(parts[0], users), _read_table(parts[1], None)
        odd = set(train.users) - set(test.users)
        if users is None:
            odd |= set(test.users) - set(train.users)
        if odd:
            raise InputError(f"{data}: train and test must have the same users; only in one of them: {min(odd)}")
        test = _select_users(test, train.users)
    else:
        train, test = _split_table(_read_table(parts[0], users), data)
    classes = sorted(train.classes | test.classes)
    if classes != list(range(len(classes))):
        raise InputError(f"{data}: labels must be 0, 1, 2 and so on, found: {classes}")
    pools = [_make_records(table, data, image_size) for table in (train, test)]
    owners = [torch.tensor(table.owner) for table in (train, test)]
    deal = by_user(owners[0], owners[1])
    federation = Federation(
        name="leaf",
        n_class=len(classes),
        input_shape=tuple(pools[0].inputs.shape[1:]),
        train=pools[0],
        test=pools[1],
        shards=tuple(Shard(*own) for own in zip(train.users, deal.train, deal.test, strict=True)),
        transform=IMAGE_TRANSFORM if pools[0].inputs.dtype == torch.uint8 else IDENTITY,
        class_names=tuple(str(label) for label in classes),
    )
    return check_federation(federation)


def leaf_parts(folder: Path) -> list[Path]:
    """LEAF's folders `train` and `test` if both are there, else `all_data`; in `folder` or in its `data`."""
    for data in (folder, folder / "data"):
        for names in (("train", "test"), ("all_data",)):
            parts = [data / name for name in names]
            if all(_json_files(part) for part in parts):
                return parts
    raise InputError(
        f"no LEAF data (all_data/*.json, or train and test) in folder: {folder}",
        hint="give LEAF's data/celeba folder by --data-dir, after its preprocess.sh has run",
    )


def leaf_digest(folder: Path) -> str:
    """A SHA-256 of the names and contents of all files of the folder, images included."""
    parts = leaf_parts(folder)
    data = parts[0].parent
    images = sorted(path for path in (data / IMAGE_FOLDER).glob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in [*(path for part in parts for path in _json_files(part)), *images]:
        digest.update(f"{path.relative_to(data).as_posix()}\0{sha256_of(path)}\0".encode())
    return digest.hexdigest()


def _json_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _read_table(folder: Path, limit: int | None) -> _Table:
    """The records of the first `limit` users, or of all; `classes` are always those of all users."""
    seen: dict[str, int] = {}
    classes: set[int] = set()
    records: list[Any] = []
    all_labels: list[int] = []
    owner: list[int] = []
    for path in _json_files(folder):
        for user, inputs, labels in _read_users(path):
            if user in seen:
                raise InputError(f"{path}: a user must be in only one file; repeated: {user}")
            place = seen[user] = len(seen)
            classes.update(labels)
            if limit is None or place < limit:
                records.extend(inputs)
                all_labels.extend(labels)
                owner.extend([place] * len(labels))
    if limit is not None and len(seen) < limit:
        raise InputError(
            f"{folder} has {len(seen)} users, fewer than asked for: {limit}", hint=f"--clients {len(seen)}"
        )
    return _Table(tuple(seen)[:limit], records, all_labels, owner, frozenset(classes))


def _read_users(path: Path) -> list[tuple[str, list[Any], list[int]]]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        found = []
        for user, expected in zip(content["users"], content["num_samples"], strict=True):
            inputs, labels = content["user_data"][user]["x"], content["user_data"][user]["y"]
            if not len(inputs) == len(labels) == expected:
                raise InputError(
                    f"{path}: user {user}: expected {expected} records, found {len(inputs)} inputs and {len(labels)} "
                    "labels"
                )
            found.append((str(user), list(inputs), [int(label) for label in labels]))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a LEAF file: {type(error).__name__}: {error}") from error
    return found


def _select_users(table: _Table, users: tuple[str, ...]) -> _Table:
    """The records of these users, with users numbered in this order, which may differ from that in the files."""
    place = {user: at for at, user in enumerate(users)}
    kept = _select(table, [i for i, at in enumerate(table.owner) if table.users[at] in place])
    return replace(kept, users=users, owner=[place[table.users[at]] for at in kept.owner])


def _select(table: _Table, positions: list[int]) -> _Table:
    return _Table(
        table.users,
        [table.inputs[i] for i in positions],
        [table.labels[i] for i in positions],
        [table.owner[i] for i in positions],
        table.classes,
    )


def _split_table(table: _Table, data: Path) -> tuple[_Table, _Table]:
    owner, labels = np.array(table.owner), torch.tensor(table.labels)
    for_test: list[int] = []
    for user, name in enumerate(table.users):
        positions = torch.from_numpy(np.flatnonzero(owner == user))
        # `hold_out` keeps a record of each class; for a user with one record a class, the classes are ignored.
        _, held = hold_out(positions, labels, TEST_FRACTION, SPLIT_KEY.child(name))
        if len(held) == 0:
            _, held = hold_out(positions, torch.zeros_like(labels), 0.5, SPLIT_KEY.child(name))
        if len(held) == 0:
            raise InputError(
                f"{data}: user {name} needs at least 2 records, one for test, found: {len(positions)}",
                hint="run LEAF's preprocess.sh with -k 5, which leaves out users with few records",
            )
        for_test.extend(held.tolist())
    chosen = set(for_test)
    return _select(table, [i for i in range(len(owner)) if i not in chosen]), _select(table, sorted(chosen))


def _make_records(table: _Table, data: Path, image_size: int) -> Records:
    return Records(_read_inputs(table, data, image_size), torch.tensor(table.labels), torch.tensor(table.owner))


def _read_inputs(table: _Table, data: Path, image_size: int) -> Tensor:
    if any(isinstance(value, str) for value in table.inputs):
        images = np.empty((len(table.inputs), 3, image_size, image_size), np.uint8)
        for index, name in enumerate(table.inputs):
            images[index] = _read_one_image(data / IMAGE_FOLDER, str(name), image_size)
        return torch.from_numpy(images)
    try:
        return torch.tensor(table.inputs, dtype=torch.float32)
    except (ValueError, TypeError) as error:
        raise InputError(f"{data}: the entries x of all users must be numbers of the same shape: {error}") from error


def _read_one_image(folder: Path, name: str, size: int) -> NDArray[np.uint8]:
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise InputError(f"missing image: {path}", hint="LEAF's CelebA needs the images in data/raw/img_align_celeba")
    return read_image(path, channels=3, size=(size, size))
