"""Refuse or leave out rows that cannot be used; find the position of each label and each group in a list of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedlog.errors import InputError

_Read = TypeVar("_Read")


class BadRowPolicy(Enum):
    """What to do about rows that cannot be used (unknown label, text instead of a number, broken image)."""

    REFUSED = "refuse the source; the error names the first such row"
    LEFT_OUT = "leave out these rows; the others do not change"


class BadRowsError(InputError):
    """Some rows cannot be used; `bad` (n,) marks them."""

    def __init__(self, message: str, *, hint: str | None = None, bad: NDArray[np.bool_] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.bad = bad


def refuse_bad_rows(bad: NDArray[np.bool_], values: NDArray[Any], expected: str, where: str) -> None:
    """Raise a BadRowsError if `bad` (n,) marks a row; the error names the first such row and its value."""
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise BadRowsError(
            f"expected {expected} in row {row + 1} of {where}, found: {values[row]}",
            hint="correct or remove the row",
            bad=bad,
        )


def find_codes(values: Iterable[Any], known: Iterable[Any]) -> NDArray[np.int64]:
    """The position of each value in the list of known values; -1 for an unknown value."""
    place = {value: position for position, value in enumerate(known)}
    return np.array([place.get(value, -1) for value in values], dtype=np.int64)


def find_group_codes(groups: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The code of each row's group, and the sorted names of the groups; a code is the position of the group's name."""
    names, places = np.unique(groups, return_inverse=True)
    return places.astype(np.int64), tuple(str(name) for name in names.tolist())


def read_usable_rows(
    read: Callable[[NDArray[np.int64]], _Read], rows: int, bad_rows: BadRowPolicy
) -> tuple[_Read, str | None]:
    """What `read` returns, and a sentence about bad rows that were left out, or None if all rows were read.

    `read` gets the positions of the rows to read, and raises a BadRowsError that marks the bad rows. REFUSED passes
    that error on; LEFT_OUT calls `read` again without the bad rows.
    """
    kept, first = np.arange(rows), None
    while True:
        try:
            found = read(kept)
        except BadRowsError as error:
            if error.bad is None or bad_rows is BadRowPolicy.REFUSED:
                raise
            first = first or error.message
            kept = kept[~error.bad]
        else:
            note = f"rows that cannot be used are left out: {rows - len(kept)} of {rows}; {first}"
            return found, None if first is None else note
