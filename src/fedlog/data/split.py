"""A site's rows into training, validation and test: by group, by time, stratified by class, or each row by itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from fedlog.core.keys import Key
from fedlog.errors import InputError

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Shares:
    """The parts of the rows that are held out; the rest is for training."""

    validation: float = 0.2
    test: float = 0.2

    def __post_init__(self) -> None:
        if not (0 < self.validation < 1 and 0 < self.test < 1 and self.validation + self.test < 1):
            raise InputError(
                f"expected validation and test shares above 0 with a sum below 1, found: {self.validation}, {self.test}"
            )


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers, each in one part, each part ascending."""

    train: Positions
    validation: Positions
    test: Positions


def split_by_class(labels: Positions, shares: Shares, key: Key) -> Split:
    """A random split in which every class is divided in the same proportions, as far as its count allows."""
    parts: list[list[Positions]] = [[], [], []]
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rows = key.child("class", int(label)).numpy().permutation(rows)
        n_test, n_validation = round(len(rows) * shares.test), round(len(rows) * shares.validation)
        for part, chunk in zip(parts, np.split(rows, [n_test, n_test + n_validation]), strict=True):
            part.append(chunk)
    test, validation, train = (np.sort(np.concatenate(part)).astype(np.int64) for part in parts)
    return _not_empty(Split(train, validation, test), f"{len(labels)} rows")


def split_by_group(groups: Positions, shares: Shares, key: Key) -> Split:
    """A random split that keeps every group (a person, a device) whole in one part."""
    names, sizes = np.unique(groups, return_counts=True)
    if len(names) < 3:
        raise InputError(
            f"expected at least 3 groups to hold whole groups out for validation and test, found: {len(names)}",
            hint="leave the group column out of the schema if rows of one group may be in several parts",
        )
    order = key.child("groups").numpy().permutation(len(names))
    part_of = np.zeros(len(names), dtype=np.int64)  # 0: training
    for part, share in ((1, shares.test), (2, shares.validation)):
        room = share * len(groups)
        # One group at least, and never the last one that is left for training (or for validation).
        while (part_of == part).sum() == 0 or (room > 0 and (part_of == 0).sum() > 2):
            group = next(g for g in order if part_of[g] == 0)
            if (part_of == part).any() and sizes[group] > 2 * room:
                break
            part_of[group] = part
            room -= sizes[group]
    parts = part_of[np.searchsorted(names, groups)]
    return Split(np.flatnonzero(parts == 0), np.flatnonzero(parts == 2), np.flatnonzero(parts == 1))


def split_by_time(times: NDArray[np.float64], shares: Shares) -> Split:
    """The latest rows for test, those before them for validation; rows of one moment stay together."""
    moments = np.unique(times)
    if len(moments) < 3:
        raise InputError(f"expected at least 3 different times to split by time, found: {len(moments)}")
    ordered = np.sort(times)
    wanted = [1 - shares.test - shares.validation, 1 - shares.test]
    first = [int(np.searchsorted(moments, ordered[min(int(len(times) * w), len(times) - 1)])) for w in wanted]
    # Each part keeps one moment at least, however many rows share it.
    start = min(max(first[0], 1), len(moments) - 2)
    stop = min(max(first[1], start + 1), len(moments) - 1)
    validation_from, test_from = moments[start], moments[stop]
    return Split(
        np.flatnonzero(times < validation_from),
        np.flatnonzero((times >= validation_from) & (times < test_from)),
        np.flatnonzero(times >= test_from),
    )


def split_by_content(contents: Iterable[bytes], shares: Shares, key: Key) -> Split:
    """A split in which a row's part depends on the key and on the row's own content, and on no other row.

    One row more or less moves no other row, which is what a promise for single records rests on. The price: equal rows
    share a part, classes are not divided alike, and a part of a small table may be empty, which is no error here,
    because whether it is one would depend on a single row.
    """
    secret = key.child("content").integer().to_bytes(8, "big")
    drawn = np.array(
        [int.from_bytes(blake2b(row, key=secret, digest_size=8).digest(), "big") / 2.0**64 for row in contents]
    )
    test, held_out = drawn < shares.test, drawn < shares.test + shares.validation
    return Split(np.flatnonzero(~held_out), np.flatnonzero(held_out & ~test), np.flatnonzero(test))


def _not_empty(split: Split, found: str) -> Split:
    sizes = {"training": split.train, "validation": split.validation, "test": split.test}
    empty = [name for name, rows in sizes.items() if len(rows) == 0]
    if empty:
        raise InputError(f"expected rows for training, validation and test, found none for {', '.join(empty)}: {found}")
    return split
