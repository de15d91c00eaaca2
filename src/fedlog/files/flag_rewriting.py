"""Rewrite flags in error messages (`--epsilon 1`) as Python arguments (`epsilon=1`) for users of the Python API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fedlog.errors import FedlogError

# Shell commands are kept as they are: text in backticks, or after the word `fedlog`. A flag may have a value: a number,
# a placeholder in capitals, a text with punctuation inside, or one of the words that settings take.
_WORDS = (
    "record|client|paper|exact|local|central|distributed|secure|shared|separate|frozen|dp-sgd|identity|test|cosine|"
    "shards|dirichlet|person"
)
_VALUE = rf"\d[\w.+-]*|[A-Z]+(?:=[A-Z]+)?\b|[\w-]+[:=./][\w:=.,/-]*[\w]|(?:{_WORDS})\b"
_FLAG = re.compile(rf"`[^`]*`|fedlog [a-z].*|--([a-z][a-z0-9-]*)(?: ({_VALUE}))?( (?=--))?")


def rewrite_flags_as_arguments(text: str) -> str:
    """Rewrite flags in a text as Python arguments: `--epsilon 1 --delta 1e-5` becomes `epsilon=1, delta=1e-5`."""
    return _FLAG.sub(_replace_flag_by_argument, text)


def _replace_flag_by_argument(found: re.Match[str]) -> str:
    flag, value, another = found.groups()
    if flag is None:
        return found.group()
    return _format_argument(flag.replace("-", "_"), value) + (", " if another else "")


def _format_argument(name: str, value: str | None) -> str:
    if value is None:
        return name
    if name == "set":
        return value
    if name == "body" and "=" in value:
        client, _, body = value.partition("=")
        return f'body={{"{client}": "{body}"}}'
    return f"{name}={value}" if value[0].isdigit() else f'{name}="{value}"'


_flags_wanted = ContextVar("flags_wanted", default=False)


@contextmanager
def keep_flags_in_errors() -> Iterator[None]:
    """Disable `rewrite_flags_in_errors` inside this `with` block, so that errors show flags such as `--alpha`."""
    before = _flags_wanted.set(True)
    try:
        yield
    finally:
        _flags_wanted.reset(before)


@contextmanager
def rewrite_flags_in_errors() -> Iterator[None]:
    """Rewrite flags in errors of this `with` block as Python arguments, unless `keep_flags_in_errors` is active."""
    try:
        yield
    except FedlogError as error:
        if _flags_wanted.get():
            raise
        error.message = rewrite_flags_as_arguments(error.message)
        error.hint = None if error.hint is None else rewrite_flags_as_arguments(error.hint)
        error.args = (error.message,)
        raise
