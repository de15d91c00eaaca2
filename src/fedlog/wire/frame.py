"""What every format has in common: its magic, its checksum, how large a message may be, the error for other bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from math import prod
from typing import Any

from fedlog.errors import InputError
from fedlog.wire.message import Kind, Message

MAGIC = b"fl"
MAX_ARRAYS = 2**16 - 1  # MobileNetV2 alone has 260
MAX_DIMENSIONS = 8
MAX_ENTRIES = 2**31  # refuses a forged size before anything is allocated

# What a forged frame of few bytes may make at most: empty rows and zstandard both stand for more than was sent.
_FREE, _PER_BYTE = 2**22, 64
_CRC = struct.Struct("<I")


class WireError(InputError):
    """Bytes that are not a message of this version of the protocol."""


def largest_from(size: int) -> int:
    """How many entries, or opened bytes, may come out of a body of that many bytes."""
    return _FREE + _PER_BYTE * size


def seal(framed: bytes, start: int) -> bytes:
    """The head and body with their checksum, which begins at `start`."""
    return framed + _CRC.pack(zlib.crc32(framed, start))


def unpack_head(head: struct.Struct, version: int, blob: bytes) -> list[Any]:
    """The fields of the head after magic and version; `WireError` if one of these two is wrong."""
    if len(blob) < head.size + _CRC.size:
        raise WireError(f"a message that is too short: {len(blob)} bytes")
    magic, found, *rest = head.unpack_from(blob)
    if magic != MAGIC or found != version:
        raise WireError(
            f"not a fedlog message of version {version}: magic {magic!r}, version {found}",
            hint="both sides need versions of fedlog that speak the same protocol",
        )
    return rest


def open_frame(head: struct.Struct, blob: bytes, kind: int, start: int) -> tuple[Kind, memoryview]:
    """The kind and the body of a sealed frame; `WireError` if its checksum, begun at `start`, is wrong."""
    framed, end = memoryview(blob)[: -_CRC.size], blob[-_CRC.size :]
    if _CRC.unpack(end)[0] != zlib.crc32(framed, start):
        raise WireError("a message whose checksum does not match its content, or the message that it refers to")
    if kind not in Kind._value2member_map_:
        raise WireError(f"a message of unknown kind: {kind}")
    return Kind(kind), framed[head.size :]


def check_arrays(message: Message) -> None:
    """Refuse a message that no frame can carry."""
    if len(message.arrays) > MAX_ARRAYS:
        raise WireError(f"a message with too many arrays: {len(message.arrays)} (at most {MAX_ARRAYS})")
    for array in message.arrays:
        if array.ndim > MAX_DIMENSIONS or array.numel() > MAX_ENTRIES:
            raise WireError(
                f"an array that no message can carry: shape {tuple(array.shape)} "
                f"(at most {MAX_DIMENSIONS} dimensions and {MAX_ENTRIES} entries)"
            )


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape that a frame states, unless it is too large."""
    if len(shape) > MAX_DIMENSIONS:
        raise WireError(f"an array with too many dimensions: {len(shape)} (at most {MAX_DIMENSIONS})")
    # A zero among the sizes must not hide the others from the check: strides are products of all of them.
    if prod(size for size in shape if size) > MAX_ENTRIES:
        raise WireError(f"an array that is too large: shape {tuple(shape)} (at most {MAX_ENTRIES} entries)")
    return tuple(shape)
