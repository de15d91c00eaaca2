"""Errors for Python programs: messages name settings as flags, and here these become arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fedlog.errors import FedlogError

# A shell command stays as it is, in backticks or from `fedlog` on; a flag may have a value: a number, a placeholder in
# capitals, something with punctuation inside, or one of the words that settings take.
_WORDS = (
    "record|client|paper|exact|local|central|distributed|secure|shared|separate|frozen|dp-sgd|identity|test|cosine|"
    "shards|dirichlet"
)
_VALUE = rf"\d[\w.+-]*|[A-Z]+(?:=[A-Z]+)?\b|[\w-]+[:=./][\w:=.,/-]*[\w]|(?:{_WORDS})\b"
_SAID = re.compile(rf"`[^`]*`|fedlog [a-z].*|--([a-z][a-z0-9-]*)(?: ({_VALUE}))?( (?=--))?")


def translate(text: str) -> str:
    """The text with flags as arguments: `--epsilon 1 --delta 1e-5` becomes `epsilon=1, delta=1e-5`."""
    return _SAID.sub(_argument, text)


def _argument(found: re.Match[str]) -> str:
    flag, value, another = found.groups()
    if flag is None:
        return found.group()
    return _name_argument(flag.replace("-", "_"), value) + (", " if another else "")


def _name_argument(name: str, value: str | None) -> str:
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
def speak_flags() -> Iterator[None]:
    """Keep flags in errors. The command line needs it: it calls the same functions as Python programs."""
    before = _flags_wanted.set(True)
    try:
        yield
    finally:
        _flags_wanted.reset(before)


@contextmanager
def speak_python() -> Iterator[None]:
    """Turn flags in errors into Python arguments, unless flags are wanted."""
    try:
        yield
    except FedlogError as error:
        if _flags_wanted.get():
            raise
        error.message = translate(error.message)
        error.hint = None if error.hint is None else translate(error.hint)
        error.args = (error.message,)
        raise
