"""Check that a text file is a proper table: a header with the right separator and different names, no short rows.

polars does not check this: it reads a million columns into gigabytes, renames the second of two columns that have the
same name, and fills a short row with missing values.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path

from fedlog.errors import InputError

MOST_COLUMNS = 50_000
_HEADER_BYTES = 2**26
_NAMED = 10
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
SAVE_AS_UTF_8 = "save it as CSV in UTF-8"
HEADER_HINT = "the first line must be the header: the names of the columns"


def read_header(path: Path, separator: str, needed: Collection[str]) -> list[str]:
    """The names in a header; InputError if it is not UTF-8, too long, or has another separator or repeated names.

    `needed` are the columns that will be read (empty: all columns). Columns that are not needed may have the same name.
    If there are too many columns, the error names some that are not needed.
    """
    with path.open("rb") as file:
        line = file.readline(_HEADER_BYTES)
    if line[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in line:
        raise InputError(f"{path} is not UTF-8 text, but UTF-16 or binary", hint=SAVE_AS_UTF_8)
    if b"\r" in line.rstrip(b"\r\n"):
        raise InputError(
            f"expected lines that end with a line feed, found carriage returns alone: {path}",
            hint="save it with the line ends of Unix or Windows",
        )
    if len(line) == _HEADER_BYTES:
        raise InputError(f"expected a header of less than {_HEADER_BYTES} bytes, found more: {path}", hint=HEADER_HINT)
    try:
        header = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error.reason}", hint=SAVE_AS_UTF_8) from None
    if separator not in header and (other := next((each for each in SEPARATORS if each in header), None)):
        raise InputError(
            f"expected columns separated by {SEPARATORS[separator]}, found {SEPARATORS[other]} in the header of {path}",
            hint="save it with commas and decimal points as .csv, or with tabs as .tsv",
        )
    try:
        names = next(csv.reader([header], delimiter=separator), [])
    except csv.Error as error:
        raise InputError(f"cannot read the header of {path}: {error}", hint=HEADER_HINT) from None
    if len(names) > MOST_COLUMNS:
        strange = shorten_list(name for name in names if name not in needed)
        raise InputError(
            f"expected at most {MOST_COLUMNS} columns, found {len(names)} in {path}",
            hint=f"remove columns that are not needed, such as: {strange}",
        )
    repeated = [name for name, times in Counter(names).items() if times > 1 and name and (name in needed or not needed)]
    if repeated:
        raise InputError(
            f"expected columns with different names, found more than once in {path}: {shorten_list(repeated)}",
            hint="rename the columns",
        )
    return names


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


def blank_unusable_lines(content: bytes, separator: str, columns: int) -> bytes:
    """Return the text of a table, after emptying every line that could make other rows unreadable.

    Such a line is not UTF-8, has more fields than the header, or opens a quotation that it does not close. The header,
    the first line, is not changed.
    """
    header, *lines = content.split(b"\n")
    return b"\n".join([header, *(_requote_line(line, separator, columns) for line in lines)])


def _requote_line(line: bytes, separator: str, columns: int) -> bytes:
    """Return the line, with its fields quoted anew if it has quotation marks; empty if it cannot be read as a row."""
    try:
        text = line.decode()
        if '"' not in text:
            return line if text.count(separator) < columns else b""
        (fields,) = csv.reader([text.rstrip("\r")], delimiter=separator, strict=True)
    except (UnicodeDecodeError, csv.Error):
        return b""
    if len(fields) > columns:
        return b""
    written = io.StringIO()
    csv.writer(written, delimiter=separator, lineterminator="").writerow(fields)
    return written.getvalue().encode()


def shorten_list(names: Iterable[str]) -> str:
    """The first few of these names as text, and how many more there are."""
    rest = iter(names)
    first = ", ".join(name[:80] for name in islice(rest, _NAMED))
    more = sum(1 for _ in rest)
    return f"{first} and {more} more" if more else first
