"""Encode and decode the messages and states of a secure sum; and the two exceptions that a secure sum raises.

A value is a frozen dataclass with fields of type `int`, `bytes`, `tuple[int, ...]` or a mapping from `int` to `bytes`;
its fields are written in order. `decode` refuses everything that `encode` does not write: wrong lengths, unsorted
keys, bytes left over.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

from fedlog.errors import RunError
from fedlog.wire.frame import PayloadReader, WireError

_COUNT = struct.Struct("<I")
_NUMBER = struct.Struct("<Q")


class RefusalError(RunError):
    """A message of a secure sum was refused; the state of its receiver has not changed."""


class RoundFailedError(RunError):
    """A secure sum failed; nothing was unmasked."""


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=_Dataclass)
Numbers = TypeVar("Numbers", bound=Sequence[int])


def encode(value: _Dataclass) -> bytes:
    """Encode a message or state as bytes; `decode` with its type restores the value."""
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
    """Decode a value of type `kind`; raise RefusalError if the bytes hold anything else."""
    reader, types = PayloadReader(blob), _find_field_types(kind)
    try:
        values = {entry.name: _read_item(reader, types[entry.name]) for entry in fields(kind)}
        reader.require_end()
    except WireError as error:
        raise RefusalError(error.message) from None
    return kind(**values)


@lru_cache
def _find_field_types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read_item(reader: PayloadReader, kind: Any) -> Any:
    if kind is int:
        return _NUMBER.unpack(reader.take(8))[0]
    count = _read_count(reader)
    if kind is bytes:
        return bytes(reader.take(count))
    if kind == tuple[int, ...]:
        return _require_ascending(struct.unpack(f"<{count}I", reader.take(4 * count)))
    entries = [(_read_count(reader), bytes(reader.take(_read_count(reader)))) for _ in range(count)]
    _require_ascending([number for number, _ in entries])
    return dict(entries)


def _read_count(reader: PayloadReader) -> int:
    return int(_COUNT.unpack(reader.take(4))[0])


def _require_ascending(numbers: Numbers) -> Numbers:
    if any(a >= b for a, b in pairwise(numbers)):
        raise RefusalError(f"expected client numbers in ascending order, found: {list(numbers)}")
    return numbers
