"""Split a site's rows into training, validation and test: by group, by time, by class, or by a hash of each row.

The test rows are the same for every split seed. The other rows are shuffled and divided into folds, as in
cross-validation: each seed takes the next fold for validation and the other folds for training. After the last fold,
the rows are shuffled again. Groups are shuffled and taken in the same way. A split by time is the same for every seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedlog.core.keys import Key
from fedlog.errors import InputError

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class HeldOutShares:
    """The shares of the rows for validation and for test, and the seed that chooses the validation rows."""

    validation: float = 0.2
    test: float = 0.2
    split_seed: int = 0  # a deployment uses 0; each repetition of an experiment has another seed

    def __post_init__(self) -> None:
        if not (0 < self.validation < 1 and 0 < self.test < 1 and self.validation + self.test < 1):
            raise InputError(
                "expected validation and test shares above 0 with a sum below 1, found: "
                f"{self.validation}, {self.test}",
                hint="0.2 and 0.2 are usual",
            )
        if self.split_seed < 0:
            raise InputError(f"the split seed must be 0 or more, found: {self.split_seed}", hint="a deployment uses 0")

    @property
    def folds(self) -> int:
        """The number of folds into which the rows that are not for test are divided; one fold is for validation."""
        return max(2, math.ceil((1 - self.test) / self.validation - 1e-9))

    @property
    def shuffle_and_fold(self) -> tuple[int, int]:
        """Which shuffle of the rows the split seed uses, and which fold is for validation; both count from 0."""
        return divmod(self.split_seed, self.folds)


@dataclass(frozen=True, eq=False)
class Split:
    """The positions of the rows of the training, validation and test part, ascending; every row is in one part."""

    train: Positions
    validation: Positions
    test: Positions


def split_by_class(labels: Positions, shares: HeldOutShares, key: Key) -> Split:
    """A random split that divides every class in the same shares, up to rounding to whole rows."""
    parts: list[list[Positions]] = [[], [], []]
    for at, label in enumerate(np.unique(labels)):
        rows = np.flatnonzero(labels == label)
        own = key.child("class", int(label))
        rows = own.numpy().permutation(rows)
        n_test, n_validation = round(len(rows) * shares.test), round(len(rows) * shares.validation)
        test, others = rows[:n_test], rows[n_test:]
        validation = _choose_validation_rows(others, n_validation, shares, own, at)
        for part, chunk in zip(parts, (test, validation, np.setdiff1d(others, validation)), strict=True):
            part.append(chunk)
    test, validation, train = (np.sort(np.concatenate(part)).astype(np.int64) for part in parts)
    return _refuse_empty_parts(Split(train, validation, test), f"{len(labels)} rows", shares)


def _choose_validation_rows(rows: Positions, count: int, shares: HeldOutShares, key: Key, shift: int) -> Positions:
    """The validation rows of one class for this split seed; `rows` are the rows of the class that are not for test.

    Fold 0 has `count` rows, and the other folds divide the rest evenly. Some of these folds may have one row more than
    others. `shift`, which differs between classes, rotates them, so that no seed gets the larger folds of all
    classes. If there is a single row, folds above 0 leave it for training.
    """
    shuffle, fold = shares.shuffle_and_fold
    if shuffle:
        rows = key.child("round", shuffle).numpy().permutation(rows)
    if fold == 0:
        return rows[:count]
    if len(rows) < 2:
        return rows[:0]
    return np.array_split(rows[count:], shares.folds - 1)[(fold - 1 + shift) % (shares.folds - 1)]


def split_by_group(groups: Positions, shares: HeldOutShares, key: Key) -> Split:
    """A random split that keeps every group (a person, a device) whole in one part."""
    names, sizes = np.unique(groups, return_counts=True)
    if len(names) < 3:
        raise InputError(
            f"expected at least 3 groups to hold whole groups out for validation and test, found: {len(names)}",
            hint="remove `group` from the schema if rows of one group may be in different parts",
        )
    order = key.child("groups").numpy().permutation(len(names))
    part_of = np.zeros(len(names), dtype=np.int64)  # 0: training
    for part, share in ((1, shares.test), (2, shares.validation)):
        room = share * len(groups)
        # Take at least one group, but leave one for training and one for validation.
        while (part_of == part).sum() == 0 or (room > 0 and (part_of == 0).sum() > 2):
            group = next(g for g in order if part_of[g] == 0)
            if (part_of == part).any() and sizes[group] > 2 * room:
                break
            part_of[group] = part
            room -= sizes[group]
    if shares.split_seed:
        chosen = _choose_validation_groups(order[part_of[order] != 1], order[part_of[order] == 2], sizes, shares, key)
        part_of[part_of == 2] = 0
        part_of[chosen] = 2
    parts = part_of[np.searchsorted(names, groups)]
    return Split(np.flatnonzero(parts == 0), np.flatnonzero(parts == 2), np.flatnonzero(parts == 1))


def _choose_validation_groups(
    groups: Positions, taken_by_seed_0: Positions, sizes: Positions, shares: HeldOutShares, key: Key
) -> list[int]:
    """The validation groups for a split seed above 0; they have about the validation share of all rows.

    `groups` are the groups that are not for test, in random order; `sizes` has the number of rows of every group. Each
    seed takes the next groups that no seed before it has taken. When all are taken, they are shuffled and taken again.
    """
    waiting = [int(group) for group in groups if group not in taken_by_seed_0]
    chosen: list[int] = []
    rounds = 0
    for _ in range(shares.split_seed):
        if not waiting:
            rounds += 1
            waiting = [int(group) for group in key.child("groups", rounds).numpy().permutation(groups)]
        chosen, room = [waiting.pop(0)], shares.validation * sizes.sum()
        room -= sizes[chosen[0]]
        while waiting and len(chosen) < len(groups) - 1 and sizes[waiting[0]] <= 2 * room:
            room -= sizes[waiting[0]]
            chosen.append(waiting.pop(0))
    return chosen


def split_by_time(times: NDArray[np.float64], shares: HeldOutShares) -> Split:
    """A split with the latest rows for test and the rows before for validation; rows of one time stay together."""
    moments = np.unique(times)
    if len(moments) < 3:
        raise InputError(
            f"expected at least 3 different times to split by time, found: {len(moments)}",
            hint="remove `time` from the schema",
        )
    ordered = np.sort(times)
    wanted = [1 - shares.test - shares.validation, 1 - shares.test]
    first = [int(np.searchsorted(moments, ordered[min(int(len(times) * w), len(times) - 1)])) for w in wanted]
    # Each part gets at least one time, however many rows have it.
    start = min(max(first[0], 1), len(moments) - 2)
    stop = min(max(first[1], start + 1), len(moments) - 1)
    validation_from, test_from = moments[start], moments[stop]
    return Split(
        np.flatnonzero(times < validation_from),
        np.flatnonzero((times >= validation_from) & (times < test_from)),
        np.flatnonzero(times >= test_from),
    )


def split_by_content(contents: Iterable[bytes], shares: HeldOutShares, key: Key) -> Split:
    """A split by a hash of each row: the row's part depends only on its content, the key and the split seed.

    Adding or removing a row does not move another row to another part, as --privacy record needs. The price: equal
    rows are in the same part, parts have different shares of a class, and a part of a small table may be empty. An
    empty part raises no error, because such an error would depend on single rows.
    """
    rows = list(contents)
    drawn = _hash_rows(rows, key.child("content"))
    test = drawn < shares.test
    shuffle, fold = shares.shuffle_and_fold
    if shuffle:
        again = _hash_rows(rows, key.child("content", shuffle))
        drawn = np.where(test, drawn, shares.test + (1 - shares.test) * again)
    # Fold 0 has the validation share, the others divide the rest evenly.
    start, width = shares.test, shares.validation
    if fold:
        width = (1 - shares.test - shares.validation) / (shares.folds - 1)
        start = shares.test + shares.validation + (fold - 1) * width
    stop = math.inf if fold == shares.folds - 1 else start + width
    held_out = ~test & (drawn >= start) & (drawn < stop)
    return Split(np.flatnonzero(~held_out & ~test), np.flatnonzero(held_out), np.flatnonzero(test))


def _hash_rows(rows: Iterable[bytes], key: Key) -> NDArray[np.float64]:
    """A number from 0 to 1 for each row: a hash of its content and the key."""
    secret = key.integer().to_bytes(8, "big")
    return np.array([int.from_bytes(blake2b(row, key=secret, digest_size=8).digest(), "big") / 2.0**64 for row in rows])


def _refuse_empty_parts(split: Split, found: str, shares: HeldOutShares) -> Split:
    sizes = {"training": split.train, "validation": split.validation, "test": split.test}
    if shares.split_seed:
        del sizes["validation"]  # at a small site there may be no row left for this seed
    empty = [name for name, rows in sizes.items() if len(rows) == 0]
    if empty:
        raise InputError(
            f"expected rows for training, validation and test; of {found}, none is left for: {', '.join(empty)}",
            hint="a site needs at least 3 rows of some class, and better 20; is it the right label column?",
        )
    return split
