"""Encode the messages and states of a secure sum as bytes, and decode them strictly; and the two errors of a sum.

A value is a frozen dataclass with fields of type `int`, `bytes`, `tuple[int, ...]` or a mapping from `int` to `bytes`;
its fields are written in order. `decode` refuses everything that `encode` does not write: wrong lengths, unsorted
keys, bytes left over.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

from fedlog.errors import RunError

_COUNT = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")


class RefusalError(RunError):
    """A message of a secure sum cannot be used; the state of its receiver has not changed."""


class RoundFailedError(RunError):
    """A secure sum failed; nothing was unmasked."""


class _Value(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=_Value)


def encode(value: _Value) -> bytes:
    """The bytes of a value; `decode` with its type gives it back."""
    parts: list[bytes] = []
    for entry in fields(value):
        item = getattr(value, entry.name)
        if isinstance(item, int):
            parts.append(_NUMBER.pack(item))
        elif isinstance(item, bytes):
            parts += [_COUNT.pack(len(item)), item]
        elif isinstance(item, tuple):
            parts += [_COUNT.pack(len(item)), struct.pack(f"<{len(item)}I", *item)]
        else:
            parts.append(_COUNT.pack(len(item)))
            for key in sorted(item):
                parts += [_COUNT.pack(key), _COUNT.pack(len(item[key])), item[key]]
    return b"".join(parts)


def decode(kind: type[T], blob: bytes) -> T:
    """The value of type `kind` in these bytes; `RefusalError` if they hold anything else."""
    hints = _hints(kind)
    values: dict[str, Any] = {}
    reader = _Reader(blob)
    for entry in fields(kind):
        hint = hints[entry.name]
        if hint is int:
            values[entry.name] = reader.number()
        elif hint is bytes:
            values[entry.name] = reader.take(reader.count())
        elif hint == tuple[int, ...]:
            values[entry.name] = reader.ascending(reader.count())
        else:
            values[entry.name] = reader.table(reader.count())
    reader.end()
    return kind(**values)


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


class _Reader:
    """Reads values from bytes that another party sent, and refuses wrong ones."""

    def __init__(self, blob: bytes) -> None:
        self.blob, self.at = blob, 0

    def take(self, count: int) -> bytes:
        if count > len(self.blob) - self.at:
            raise RefusalError("the message is too short")
        self.at += count
        return self.blob[self.at - count : self.at]

    def count(self) -> int:
        return int(_COUNT.unpack(self.take(4))[0])

    def number(self) -> int:
        return int(_NUMBER.unpack(self.take(8))[0])

    def ascending(self, count: int) -> tuple[int, ...]:
        items = struct.unpack(f"<{count}I", self.take(4 * count))
        if any(a >= b for a, b in pairwise(items)):
            raise RefusalError("the members are not in ascending order")
        return items

    def table(self, count: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        previous = -1
        for _ in range(count):
            key = self.count()
            if key <= previous:
                raise RefusalError("the members are not in ascending order")
            found[key], previous = self.take(self.count()), key
        return found

    def end(self) -> None:
        if self.at != len(self.blob):
            raise RefusalError(f"the message is {len(self.blob) - self.at} bytes too long")
