"""Rows that cannot be used: refused with their place, or left out one by one."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedlog.errors import InputError

_Read = TypeVar("_Read")


class BadRows(Enum):
    """What becomes of rows that cannot be used: an unknown label, a cell that is no number, a broken image."""

    REFUSED = "the source is refused, with the first of them"
    LEFT_OUT = "each is left out by itself, so that it moves no other row"


class BadRowsError(InputError):
    """Some rows cannot be used; `bad` (n,) says which of those that were given."""

    def __init__(self, message: str, *, hint: str | None = None, bad: NDArray[np.bool_] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.bad = bad


def read_usable(read: Callable[[NDArray[np.int64]], _Read], rows: int) -> tuple[_Read, str | None]:
    """Read the rows that can be used, and return with them a sentence on the others; None where all are used.

    `read` gets positions of rows, and raises BadRowsError for those that it cannot use, each by its own values.
    """
    kept, first = np.arange(rows), None
    while True:
        try:
            found = read(kept)
        except BadRowsError as error:
            if error.bad is None:
                raise
            first = first or error.message
            kept = kept[~error.bad]
        else:
            told = f"rows that cannot be used are left out: {rows - len(kept)} of {rows}; {first}"
            return found, None if first is None else told
