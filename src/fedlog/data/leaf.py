"""Read a LEAF folder as a federation with one client for each user.

LEAF (https://leaf.cmu.edu) writes `data/all_data/*.json`, and after its own split `data/train` and `data/test`. Each
JSON file has `users`, `num_samples` and `user_data`: for each user `x` (numbers, or names of image files) and `y`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard, check_federation
from fedlog.data.images import read_image
from fedlog.data.partition import hold_out_records
from fedlog.data.public_data_sets import hash_file
from fedlog.data.transforms import IDENTITY, Transform
from fedlog.errors import InputError, add_default_hint
from fedlog.files.json_text import parse_json

# LEAF's CelebA model uses images of 84 x 84 pixels and three channels.
IMAGE_SIZE = 84
IMAGE_FOLDER = Path("raw") / "img_align_celeba"
IMAGE_TRANSFORM = Transform(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
TEST_FRACTION = 0.2
PREPROCESS = "give LEAF's data/celeba folder by --data-dir, after its preprocess.sh has run"
# The test split of all_data does not depend on a run's seed: test records are the same in every run.
SPLIT_KEY = Key(0).child("leaf", "test split")


@dataclass(frozen=True, eq=False)
class _UserRecords:
    """The inputs and labels of one user; images are still names of files."""

    inputs: list[Any]
    labels: list[int]

    def at(self, positions: Tensor) -> _UserRecords:
        """The records at these positions."""
        chosen = positions.tolist()
        return _UserRecords([self.inputs[i] for i in chosen], [self.labels[i] for i in chosen])


@add_default_hint(PREPROCESS)
def read_leaf(folder: Path, *, users: int | None = None) -> Federation:
    """A federation with one client for each user of the folder, or for its first `users` users.

    LEAF's `train` and `test` are used if they exist; otherwise 20 % of each user's records in `all_data` are for test.
    """
    parts = find_leaf_folders(folder)
    data = parts[0].parent
    train, classes = _read_users(parts[0], users)
    if len(parts) == 2:
        test, test_classes = _read_users(parts[1], None)
        classes |= test_classes
        odd = train.keys() ^ test.keys() if users is None else train.keys() - test.keys()
        if odd:
            raise InputError(f"{data}: train and test must have the same users; only in one of them: {min(odd)}")
        test = {name: records for name, records in test.items() if name in train}
    else:
        halves = {name: _split_user(name, records, data) for name, records in train.items()}
        train, test = ({name: half[part] for name, half in halves.items()} for part in (0, 1))
    if sorted(classes) != list(range(len(classes))):
        raise InputError(f"{data}: labels must be 0, 1, 2 and so on, found: {sorted(classes)}")
    numbers = {name: number for number, name in enumerate(train)}  # test may list the users in another order
    pools = [_make_records(part, numbers, data) for part in (train, test)]
    federation = Federation(
        name="leaf",
        n_class=len(classes),
        input_shape=tuple(pools[0].inputs.shape[1:]),
        train=pools[0],
        test=pools[1],
        shards=tuple(
            Shard(name, *((pool.required_users == number).nonzero()[:, 0] for pool in pools))
            for name, number in numbers.items()
        ),
        transform=IMAGE_TRANSFORM if pools[0].inputs.dtype == torch.uint8 else IDENTITY,
        class_names=tuple(str(label) for label in sorted(classes)),
    )
    return check_federation(federation)


def find_leaf_folders(folder: Path) -> list[Path]:
    """LEAF's folders `train` and `test` if both exist, else `all_data`, in `folder` or in its sub-folder `data`."""
    for data in (folder, folder / "data"):
        for names in (("train", "test"), ("all_data",)):
            parts = [data / name for name in names]
            if all(_list_json_files(part) for part in parts):
                return parts
    raise InputError(f"no LEAF data (all_data/*.json, or train and test) in folder: {folder}", hint=PREPROCESS)


def digest_leaf_folder(folder: Path) -> str:
    """A SHA-256 of the names and contents of all files of the folder, images included."""
    parts = find_leaf_folders(folder)
    data = parts[0].parent
    images = sorted(path for path in (data / IMAGE_FOLDER).glob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in [*(path for part in parts for path in _list_json_files(part)), *images]:
        digest.update(f"{path.relative_to(data).as_posix()}\0{hash_file(path)}\0".encode())
    return digest.hexdigest()


def _list_json_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _read_users(folder: Path, limit: int | None) -> tuple[dict[str, _UserRecords], set[int]]:
    """The records of the first `limit` users (of all users if it is None), and the labels that occur at any user."""
    seen: set[str] = set()
    classes: set[int] = set()
    kept: dict[str, _UserRecords] = {}
    for path in _list_json_files(folder):
        for user, records in _read_file(path):
            if user in seen:
                raise InputError(f"{path}: a user must be in only one file; repeated: {user}")
            seen.add(user)
            classes.update(records.labels)
            if limit is None or len(kept) < limit:
                kept[user] = records
    if limit is not None and len(kept) < limit:
        raise InputError(
            f"{folder} has {len(kept)} users, fewer than asked for: {limit}", hint=f"--clients {len(kept)}"
        )
    return kept, classes


def _read_file(path: Path) -> list[tuple[str, _UserRecords]]:
    """The users in one of LEAF's JSON files, each with its name and records."""
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
            found.append((str(user), _UserRecords(list(inputs), [int(label) for label in labels])))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a LEAF file: {type(error).__name__}: {error}") from error
    return found


def _split_user(name: str, records: _UserRecords, folder: Path) -> tuple[_UserRecords, _UserRecords]:
    """The training and the test records of one user."""
    labels = torch.tensor(records.labels)
    # `hold_out_records` keeps a record of each class; for a user with one record a class, the classes are ignored.
    for classes, fraction in ((labels, TEST_FRACTION), (torch.zeros_like(labels), 0.5)):
        kept, held = hold_out_records(torch.arange(len(labels)), classes, fraction, SPLIT_KEY.child(name))
        if len(held):
            return records.at(kept), records.at(held)
    raise InputError(
        f"{folder}: user {name} needs at least 2 records, one for test, found: {len(labels)}",
        hint="run LEAF's preprocess.sh with -k 5, which leaves out users with few records",
    )


def _make_records(users: Mapping[str, _UserRecords], user_numbers: Mapping[str, int], folder: Path) -> Records:
    """The records of all users in one pool; `user_numbers` has the number that stands for each user in the pool."""
    owners = [user_numbers[name] for name, records in users.items() for _ in records.labels]
    labels = [label for records in users.values() for label in records.labels]
    inputs = [each for records in users.values() for each in records.inputs]
    return Records(_read_inputs(inputs, folder), torch.tensor(labels), torch.tensor(owners))


def _read_inputs(inputs: list[Any], folder: Path) -> Tensor:
    if any(isinstance(value, str) for value in inputs):
        images = np.empty((len(inputs), 3, IMAGE_SIZE, IMAGE_SIZE), np.uint8)
        for index, name in enumerate(map(str, inputs)):
            path = folder / IMAGE_FOLDER / name
            if Path(name).name != name or not path.is_file():
                hint = "LEAF's CelebA needs the images in data/raw/img_align_celeba"
                raise InputError(f"missing image: {path}", hint=hint)
            images[index] = read_image(path, channels=3, size=(IMAGE_SIZE, IMAGE_SIZE))
        return torch.from_numpy(images)
    try:
        return torch.tensor(inputs, dtype=torch.float32)
    except (ValueError, TypeError) as error:
        raise InputError(f"{folder}: the entries x of all users must be numbers of the same shape: {error}") from error
