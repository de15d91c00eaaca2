"""What all frames share (magic number, checksum, size limits, reader, error), and the codec `f32` of the paper.

`f32` writes every float as 4 bytes. `docs/wire.md` describes each byte:

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
_HEADER = struct.Struct("<2sBBBH")
_FLOAT32, _INT64, _BIT = 1, 2, 3
MAX_ARRAYS = 2**16 - 1  # MobileNetV2 alone has 260
MAX_DIMENSIONS = 8
MAX_ENTRIES = 2**31  # refuses a forged size before anything is allocated
# Limits for a forged frame: empty rows and zstandard let a few bytes stand for many entries.
_FREE, _PER_BYTE = 2**22, 64
_CRC = struct.Struct("<I")
SAME_CODEC = "sender and receiver need the same codec, in the table of codecs in docs/wire.md"
_LONGEST_VARINT = 10  # bytes of a 64-bit number, 7 bits in each


def can_send_difference(message: Message, known: Message) -> bool:
    """Whether a message can be sent as the difference to `known`: both have the same kind, shapes and entry types."""
    found, expected = (
        [(array.shape, array.is_floating_point(), array.dtype == torch.bool) for array in each.arrays]
        for each in (message, known)
    )
    return message.kind is known.kind and found == expected


def compute_starting_checksum(known: Message | None) -> int:
    """The start value of a frame's checksum: the checksum of `known`, or 0 if it is None.

    `known` is the earlier message to which the frame refers, if it refers to one.
    """
    found = 0
    for array in () if known is None else known.arrays:
        exact = array.to(torch.float64 if array.is_floating_point() else torch.int64)
        found = zlib.crc32(exact.contiguous().numpy().tobytes(), found)
    return found


class WireError(InputError):
    """A message that cannot be encoded, or bytes that are not a message of this version of the protocol."""


def compute_max_decoded_size(size: int) -> int:
    """The most entries, and the most decompressed bytes, that a message with a payload of `size` bytes may have."""
    return _FREE + _PER_BYTE * size


def add_checksum(framed: bytes, starting_checksum: int) -> bytes:
    """Append the CRC-32 of a frame's header and payload (`framed`), continued from `starting_checksum`."""
    return framed + _CRC.pack(zlib.crc32(framed, starting_checksum))


def read_header(header: struct.Struct, version: int, blob: bytes) -> list[Any]:
    """The header's fields after magic number and version; `WireError` if the magic number or version is wrong."""
    if len(blob) < header.size + _CRC.size:
        raise WireError(f"a message must have at least {header.size + _CRC.size} bytes, found: {len(blob)}")
    magic, found, *rest = header.unpack_from(blob)
    if magic != MAGIC or found != version:
        raise WireError(
            f"expected a fedlog message of version {version} with magic number {MAGIC!r}, "
            f"found: version {found}, magic number {magic!r}",
            hint="both sides need versions of fedlog that speak the same protocol",
        )
    return rest


def open_frame(header: struct.Struct, blob: bytes, kind_number: int, starting_checksum: int) -> tuple[Kind, memoryview]:
    """The kind and the payload of a frame, whose header was read before and has the kind `kind_number`.

    `WireError` if the kind is unknown, or if the checksum, continued from `starting_checksum`, is wrong.
    """
    framed, end = memoryview(blob)[: -_CRC.size], blob[-_CRC.size :]
    if _CRC.unpack(end)[0] != zlib.crc32(framed, starting_checksum):
        raise WireError(
            "wrong checksum: the message is damaged, or refers to an earlier message that the receiver does not have",
            hint="the sender must send the whole message again",
        )
    if kind_number not in Kind._value2member_map_:
        raise WireError(f"the message has an unknown kind: {kind_number}")
    return Kind(kind_number), framed[header.size :]


def check_arrays(message: Message) -> None:
    """Raise a `WireError` if a message has more arrays, dimensions or entries than a frame can carry."""
    if len(message.arrays) > MAX_ARRAYS:
        raise WireError(f"a message must have at most {MAX_ARRAYS} arrays, found: {len(message.arrays)}")
    for array in message.arrays:
        if array.ndim > MAX_DIMENSIONS or array.numel() > MAX_ENTRIES:
            raise WireError(
                f"an array of a message must have at most {MAX_DIMENSIONS} dimensions and {MAX_ENTRIES} entries, "
                f"found: shape {tuple(array.shape)}"
            )


def check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape that was read from a frame; `WireError` if it has too many dimensions or entries."""
    if len(shape) > MAX_DIMENSIONS:
        raise WireError(f"an array of a message must have at most {MAX_DIMENSIONS} dimensions, found: {len(shape)}")
    # Zeros are left out of the product, so that they hide no huge size: strides are products of the other sizes.
    if prod(size for size in shape if size) > MAX_ENTRIES:
        raise WireError(f"an array of a message must have at most {MAX_ENTRIES} entries, found: shape {tuple(shape)}")
    return tuple(shape)


def encode_varint(number: int) -> bytes:
    """The bytes of a whole number, 0 or more, as LEB128: 7 bits in each byte, lowest first.

    The top bit of a byte is 1 if another byte follows.
    """
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_zigzag(number: int) -> int:
    """Map 0, -1, 1, -2, 2, ... to 0, 1, 2, 3, 4, ... (zigzag), so that small negative numbers get short codes."""
    return number << 1 if number >= 0 else (-number << 1) - 1


class PayloadReader:
    """Reads the payload of a message from front to back."""

    def __init__(self, payload: bytes | memoryview) -> None:
        self._view = memoryview(payload)
        self._at = 0

    @property
    def bytes_left(self) -> int:
        """The number of unread bytes."""
        return len(self._view) - self._at

    def take(self, size: int) -> memoryview:
        """Read the next `size` bytes; `WireError` if fewer are left."""
        if size > self.bytes_left:
            raise WireError(f"the message is cut short: {size} bytes expected, {self.bytes_left} found")
        self._at += size
        return self._view[self._at - size : self._at]

    def require_end(self) -> None:
        """Raise a `WireError` if there are unread bytes."""
        if self.bytes_left:
            raise WireError(f"expected the end of the message, found more bytes: {self.bytes_left}")

    def read_byte(self) -> int:
        """Read the next byte."""
        return self.take(1)[0]

    def read_varint(self) -> int:
        """Read the next whole number; `WireError` if it is 2^64 or more, or has more bytes than it needs."""
        number = 0
        for place in range(_LONGEST_VARINT):
            byte = self.read_byte()
            number |= (byte & 127) << (7 * place)
            if byte < 128:
                if (place and not byte) or number >= 2**64:
                    break
                return number
        raise WireError("a whole number in the message is 2^64 or more, or has more bytes than it needs")

    def read_signed_varint(self) -> int:
        """Read the next whole number of either sign, written with `encode_zigzag`."""
        number = self.read_varint()
        return number >> 1 if not number & 1 else -(number + 1 >> 1)

    def read_bits(self, count: int) -> NDArray[np.bool_]:
        """Read `count` truth values, 8 in a byte, lowest bit first; `WireError` if a bit after the last one is set."""
        raw = np.frombuffer(self.take(-(-count // 8)), np.uint8)
        if count % 8 and raw[-1] >> (count % 8):
            raise WireError("the unused bits after a list of bits in the message must be 0, found: a 1")
        return np.unpackbits(raw, count=count, bitorder="little").astype(bool)


def pack_bits(values: NDArray[np.bool_]) -> bytes:
    """The bytes of truth values, as `PayloadReader.read_bits` reads them."""
    return np.packbits(values, bitorder="little").tobytes()


def _pack_array(array: Tensor) -> bytes:
    if array.dtype == torch.bool:
        code, payload = _BIT, pack_bits(array.flatten().numpy())
    elif not array.is_floating_point():
        code, payload = _INT64, array.to(torch.int64).contiguous().numpy().astype("<i8").tobytes()
    else:
        code, payload = _FLOAT32, array.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4").tobytes()
    return bytes([code, array.ndim]) + struct.pack(f"<{array.ndim}I", *array.shape) + payload


def _unpack_array(reader: PayloadReader) -> Tensor:
    code, ndim = reader.read_byte(), reader.read_byte()
    shape = check_shape(struct.unpack(f"<{ndim}I", reader.take(4 * ndim)))
    if code == _BIT:
        return torch.from_numpy(reader.read_bits(prod(shape))).reshape(shape)
    if code not in (_INT64, _FLOAT32):
        raise WireError(f"an array of the message has an unknown type: {code}")
    size, numbers = (8, "<i8") if code == _INT64 else (4, "<f4")
    return torch.from_numpy(np.frombuffer(reader.take(size * prod(shape)), numbers).copy()).reshape(shape)


@dataclass(frozen=True)
class Float32Codec:
    """The dense codec: every float as 4 bytes, a truth value as one bit, a whole number as 8 bytes."""

    name: str = "f32"
    number: int = 1
    hides_classes = True
    supports_differences = False
    rounding = 2.0**-24

    def encode(self, message: Message, key: Key | None = None, known: Message | None = None) -> bytes:
        """The bytes of a message; `WireError` if it has more arrays, dimensions or entries than a frame can carry."""
        check_arrays(message)
        header = _HEADER.pack(MAGIC, VERSION, message.kind, self.number, len(message.arrays))
        payload = b"".join(_pack_array(array) for array in message.arrays)
        return add_checksum(header + payload, compute_starting_checksum(known) if message.kind is Kind.SAME else 0)

    def decode(self, blob: bytes, known: Message | None = None) -> Message:
        """The message in these bytes; `WireError` if they are not a message."""
        number, codec, count = read_header(_HEADER, VERSION, blob)
        if codec != self.number:
            raise WireError(
                f"expected a message in codec {self.number} ({self.name}), found: codec {codec}", hint=SAME_CODEC
            )
        kind, payload = open_frame(
            _HEADER, blob, number, compute_starting_checksum(known) if number == Kind.SAME else 0
        )
        reader = PayloadReader(payload)
        arrays = tuple(_unpack_array(reader) for _ in range(count))
        reader.require_end()
        return Message(kind, arrays)
