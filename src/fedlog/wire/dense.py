"""The paper's format: every float as 4 bytes, whatever it is. `docs/wire.md` describes it to the byte.

    frame   = magic(2) version(1) kind(1) codec(1) arrays(2) | array... | crc32(4)
    array   = dtype(1) ndim(1) dims(4 each) | entries, little endian

The dense float32 statistics of 10 classes x 51 features are 2040 bytes of entries and 21 of framing (1 %).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.wire.known import checksum_of
from fedlog.wire.limits import MAGIC, MAX_ARRAYS, MAX_DIMENSIONS, MAX_ENTRIES, WireError
from fedlog.wire.message import Kind, Message

VERSION = 1
_HEAD = struct.Struct("<2sBBBH")
_ARRAY = struct.Struct("<BB")
_CRC = struct.Struct("<I")
_FLOAT32, _INT64, _BIT = 1, 2, 3


def _pack(array: Tensor) -> bytes:
    if array.ndim > MAX_DIMENSIONS or array.numel() > MAX_ENTRIES:
        raise WireError(
            f"an array that no message can carry: shape {tuple(array.shape)} "
            f"(at most {MAX_DIMENSIONS} dimensions and {MAX_ENTRIES} entries)"
        )
    if array.dtype == torch.bool:
        code, body = _BIT, np.packbits(array.flatten().numpy(), bitorder="little").tobytes()
    elif not array.is_floating_point():
        code, body = _INT64, array.to(torch.int64).contiguous().numpy().astype("<i8").tobytes()
    else:
        code, body = _FLOAT32, array.detach().to("cpu", torch.float32).contiguous().numpy().astype("<f4").tobytes()
    return _ARRAY.pack(code, array.ndim) + struct.pack(f"<{array.ndim}I", *array.shape) + body


def _unpack(view: memoryview, at: int) -> tuple[Tensor, int]:
    code, ndim = _ARRAY.unpack_from(view, at)
    at += _ARRAY.size
    if ndim > MAX_DIMENSIONS:
        raise WireError(f"an array with too many dimensions: {ndim} (at most {MAX_DIMENSIONS})")
    shape = struct.unpack_from(f"<{ndim}I", view, at)
    at += 4 * ndim
    # A zero among the sizes must not hide the others from the check: strides are products of all of them.
    if prod(size for size in shape if size) > MAX_ENTRIES:
        raise WireError(f"an array that is too large: shape {shape} (at most {MAX_ENTRIES} entries)")
    entries = prod(shape)
    sizes = {_BIT: -(-entries // 8), _INT64: 8 * entries, _FLOAT32: 4 * entries}
    if code not in sizes:
        raise WireError(f"an array of unknown type: {code}")
    raw = view[at : at + sizes[code]]
    if len(raw) < sizes[code]:
        raise WireError(f"a truncated array: {sizes[code]} bytes expected, {len(raw)} found")
    if code == _BIT:
        values = np.unpackbits(np.frombuffer(raw, np.uint8), count=entries, bitorder="little").astype(bool)
    else:
        values = np.frombuffer(raw, "<i8" if code == _INT64 else "<f4").copy()
    return torch.from_numpy(values).reshape(shape), at + sizes[code]


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
        if len(message.arrays) > MAX_ARRAYS:
            raise WireError(f"a message with too many arrays: {len(message.arrays)} (at most {MAX_ARRAYS})")
        head = _HEAD.pack(MAGIC, VERSION, message.kind, self.number, len(message.arrays))
        body = head + b"".join(_pack(array) for array in message.arrays)
        start = checksum_of(known) if message.kind is Kind.SAME else 0
        return body + _CRC.pack(zlib.crc32(body, start))

    def decode(self, blob: bytes, known: Message | None = None) -> Message:
        """The message in these bytes; `WireError` for anything else."""
        if len(blob) < _HEAD.size + _CRC.size:
            raise WireError(f"a message that is too short: {len(blob)} bytes")
        magic, version, kind, codec, count = _HEAD.unpack_from(blob)
        if magic != MAGIC or version != VERSION:
            raise WireError(
                f"not a fedlog message of version {VERSION}: magic {magic!r}, version {version}",
                hint="both sides need versions of fedlog that speak the same protocol",
            )
        if codec != self.number:
            raise WireError(f"a message in another codec: {codec} (expected {self.number}, {self.name})")
        start = checksum_of(known) if kind == Kind.SAME else 0
        if _CRC.unpack_from(blob, len(blob) - _CRC.size)[0] != zlib.crc32(blob[: -_CRC.size], start):
            raise WireError("a message whose checksum does not match its content, or the message that still stands")
        if kind not in Kind._value2member_map_:
            raise WireError(f"a message of unknown kind: {kind}")
        arrays, at, view = [], _HEAD.size, memoryview(blob)[: -_CRC.size]
        try:
            for _ in range(count):
                array, at = _unpack(view, at)
                arrays.append(array)
        except struct.error as error:
            raise WireError(f"a truncated message: {error}") from None
        if at != len(view):
            raise WireError(f"a message with {len(view) - at} bytes too many")
        return Message(Kind(kind), tuple(arrays))
