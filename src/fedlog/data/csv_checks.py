"""Check that a text file is a proper table: not too many columns, and no short rows.

polars does not check this: a million columns would take gigabytes, and a row that ends early would get missing values.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path

from fedlog.errors import InputError

MOST_COLUMNS = 50_000
_HEADER_BYTES = 2**26
_NAMED = 10


def check_header(path: Path, separator: str, known: Collection[str]) -> None:
    """Refuse a file if its header is not UTF-8 text, has no end, or has too many columns.

    `known` are the columns that are needed; the error about too many columns names some others.
    """
    with path.open("rb") as file:
        line = file.readline(_HEADER_BYTES)
    if line[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in line:
        raise InputError(
            f"expected a table as UTF-8 text, found: UTF-16 or binary: {path}", hint="save it as CSV in UTF-8"
        )
    if len(line) == _HEADER_BYTES:
        raise InputError(f"expected a header of less than {_HEADER_BYTES} bytes, found more: {path}")
    count = line.count(separator.encode()) + 1
    if count > MOST_COLUMNS:
        (names,) = csv.reader([line.decode("utf-8", "replace").rstrip("\r\n")], delimiter=separator)
        strange = shorten_list(name for name in names if name not in known)
        raise InputError(
            f"expected at most {MOST_COLUMNS} columns, found {count} in {path}",
            hint=f"remove columns that are not needed, such as: {strange}",
        )


def check_rows(path: Path, separator: str, columns: int) -> None:
    """Refuse a file if a row has more or fewer fields than the header; the error names the first such row."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for number, row in enumerate(csv.reader(file, delimiter=separator)):
            if number and len(row) != columns:
                found = "is empty" if not row else f"has {len(row)} fields"
                raise InputError(
                    f"expected {columns} fields in every row of {path}, as in its header: row {number} {found}",
                    hint="write a missing value as nothing between two separators, and remove empty lines",
                )


def shorten_list(names: Iterable[str]) -> str:
    """The first few of these names as text, and how many more there are."""
    rest = iter(names)
    first = ", ".join(name[:80] for name in islice(rest, _NAMED))
    more = sum(1 for _ in rest)
    return f"{first} and {more} more" if more else first
