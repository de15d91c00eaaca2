"""Magic number, checksum, size limits, reader and error of every format; and the paper's format, `f32`.

`f32` writes every float as 4 bytes. `docs/wire.md` describes it to the byte:

    frame   = magic(2) version(1) kind(1) codec(1) arrays(2) | array... | crc32(4)
    array   = dtype(1) ndim(1) dims(4 each) | entries, little endian

The dense float32 statistics of 10 classes x 51 features are 2040 bytes of entries and 21 of framing (1 %).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.wire.message import Kind, Message

MAGIC = b"fl"
VERSION = 1  # of f32
_HEAD = struct.Struct("<2sBBBH")
_FLOAT32, _INT64, _BIT = 1, 2, 3
MAX_ARRAYS = 2**16 - 1  # MobileNetV2 alone has 260
MAX_DIMENSIONS = 8
MAX_ENTRIES = 2**31  # refuses a forged size before anything is allocated
# What a forged frame of few bytes may make at most: empty rows and zstandard both stand for more than was sent.
_FREE, _PER_BYTE = 2**22, 64
_CRC = struct.Struct("<I")
_LONGEST_VARINT = 10  # bytes of a 64-bit number, 7 bits in each


def comparable(message: Message, known: Message) -> bool:
    """Whether a message can be sent as a difference to another: the same kind, shapes and types of entries."""
    found, expected = (
        [(array.shape, array.is_floating_point(), array.dtype == torch.bool) for array in each.arrays]
        for each in (message, known)
    )
    return message.kind is known.kind and found == expected


def checksum_of(known: Message | None) -> int:
    """The start value of a frame's checksum: 0, or the checksum of the message that it refers to."""
    found = 0
    for array in () if known is None else known.arrays:
        exact = array.to(torch.float64 if array.is_floating_point() else torch.int64)
        found = zlib.crc32(exact.contiguous().numpy().tobytes(), found)
    return found


class WireError(InputError):
    """Bytes that are not a message of this version of the protocol."""


def largest_from(size: int) -> int:
    """How many entries, or opened bytes, may come out of a body of that many bytes."""
    return _FREE + _PER_BYTE * size


def seal(framed: bytes, start: int) -> bytes:
    """The head and body, followed by their checksum; `start` is the start value of the checksum."""
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
    """The kind and the body of a sealed frame; `WireError` if the checksum is wrong. `start` is its start value."""
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


def varint(number: int) -> bytes:
    """A whole number, 0 or more, as 7 bits a byte, lowest first; the top bit says that more follow (LEB128)."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> int:
    """0, -1, 1, -2, 2, ... as 0, 1, 2, 3, 4, ...: small numbers of either sign stay small."""
    return number << 1 if number >= 0 else (-number << 1) - 1


class Reader:
    """The unread rest of a message body."""

    def __init__(self, body: bytes | memoryview) -> None:
        self._view = memoryview(body)
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes are unread."""
        return len(self._view) - self._at

    def take(self, size: int) -> memoryview:
        """The next bytes; `WireError` if there are fewer."""
        if size > self.left:
            raise WireError(f"a truncated message: {size} bytes expected, {self.left} found")
        self._at += size
        return self._view[self._at - size : self._at]

    def end(self) -> None:
        """Check that nothing is left."""
        if self.left:
            raise WireError(f"a message with {self.left} bytes too many")

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def varint(self) -> int:
        """The next whole number below 2^64; `WireError` if it is longer than it needs to be."""
        number = 0
        for place in range(_LONGEST_VARINT):
            byte = self.byte()
            number |= (byte & 127) << (7 * place)
            if byte < 128:
                if (place and not byte) or number >= 2**64:
                    break
                return number
        raise WireError("a whole number in a longer form than needed, or above 2^64")

    def signed_varint(self) -> int:
        """The next whole number of either sign."""
        number = self.varint()
        return number >> 1 if not number & 1 else -(number + 1 >> 1)

    def bits(self, count: int) -> NDArray[np.bool_]:
        """The next truth values, 8 in a byte, lowest bit first; `WireError` if a bit behind the last one is set."""
        raw = np.frombuffer(self.take(-(-count // 8)), np.uint8)
        if count % 8 and raw[-1] >> (count % 8):
            raise WireError("bits behind the last truth value are set")
        return np.unpackbits(raw, count=count, bitorder="little").astype(bool)


def packed_bits(values: NDArray[np.bool_]) -> bytes:
    """Truth values as `Reader.bits` reads them."""
    return np.packbits(values, bitorder="little").tobytes()


def _pack(array: Tensor) -> bytes:
    if array.dtype == torch.bool:
        code, body = _BIT, packed_bits(array.flatten().numpy())
    elif not array.is_floating_point():
        code, body = _INT64, array.to(torch.int64).contiguous().numpy().astype("<i8").tobytes()
    else:
        code, body = _FLOAT32, array.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4").tobytes()
    return bytes([code, array.ndim]) + struct.pack(f"<{array.ndim}I", *array.shape) + body


def _unpack(reader: Reader) -> Tensor:
    code, ndim = reader.byte(), reader.byte()
    shape = check_shape(struct.unpack(f"<{ndim}I", reader.take(4 * ndim)))
    if code == _BIT:
        return torch.from_numpy(reader.bits(prod(shape))).reshape(shape)
    if code not in (_INT64, _FLOAT32):
        raise WireError(f"an array of unknown type: {code}")
    size, numbers = (8, "<i8") if code == _INT64 else (4, "<f4")
    return torch.from_numpy(np.frombuffer(reader.take(size * prod(shape)), numbers).copy()).reshape(shape)


@dataclass(frozen=True)
class Float32:
    """The dense codec: every float as 4 bytes, a truth value as one bit, a whole number as 8 bytes."""

    name: str = "f32"
    number: int = 1
    hides_content = True
    differences = False
    rounding = 2.0**-24

    def encode(self, message: Message, key: Key | None = None, known: Message | None = None) -> bytes:
        """The bytes of a message; `WireError` for one with more arrays or dimensions than a frame can tell."""
        check_arrays(message)
        head = _HEAD.pack(MAGIC, VERSION, message.kind, self.number, len(message.arrays))
        body = b"".join(_pack(array) for array in message.arrays)
        return seal(head + body, checksum_of(known) if message.kind is Kind.SAME else 0)

    def decode(self, blob: bytes, known: Message | None = None) -> Message:
        """The message in these bytes; `WireError` for anything else."""
        number, codec, count = unpack_head(_HEAD, VERSION, blob)
        if codec != self.number:
            raise WireError(f"a message in another codec: {codec} (expected {self.number}, {self.name})")
        kind, body = open_frame(_HEAD, blob, number, checksum_of(known) if number == Kind.SAME else 0)
        reader = Reader(body)
        arrays = tuple(_unpack(reader) for _ in range(count))
        reader.end()
        return Message(kind, arrays)
