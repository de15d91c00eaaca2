"""Formats of floats: 4 bytes each, 2 bytes each, or codes of a few bits, with one scale for each block of codes.

An array is treated as a matrix: its first dimension gives the rows, all others together the columns. A block lies
within one row, since entries of different rows (classes, channels) differ more in size than those of one row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedlog.core.keys import Key
from fedlog.wire.frame import PayloadReader, WireError

Floats = NDArray[np.float32]
Rows = NDArray[np.bool_]  # which rows of a matrix are sent
BLOCK = 128  # entries that share one scale


class NumberFormat(Protocol):
    """How floats are written as bytes. `rounding` is an upper bound on |rounding error| / |row| in L2 norms."""

    @property
    def name(self) -> str: ...

    @property
    def rounding(self) -> float: ...

    def pack(self, matrix: Floats, present: Rows, key: Key | None, signed: bool) -> bytes:
        """The bytes of the rows that the mask `present` marks; `signed` says whether some entry is negative."""

    def unpack(self, reader: PayloadReader, rows: int, columns: int, signed: bool) -> Floats:
        """Read a matrix with this number of rows and columns; `signed` must be the same as in `pack`."""


@dataclass(frozen=True)
class Float32Numbers:
    """float32: each entry as 4 bytes, unchanged."""

    name: str = "f32"
    rounding: float = 2.0**-24

    def pack(self, matrix: Floats, present: Rows, key: Key | None, signed: bool) -> bytes:
        """The bytes of the entries, little endian."""
        return matrix[present].astype("<f4").tobytes()

    def unpack(self, reader: PayloadReader, rows: int, columns: int, signed: bool) -> Floats:
        return np.frombuffer(reader.take(4 * rows * columns), "<f4").astype(np.float32).reshape(rows, columns)


@dataclass(frozen=True)
class Float16Numbers:
    """float16: 1 byte for each row's exponent, then 2 bytes for each entry; large entries do not overflow."""

    name: str = "f16"
    rounding: float = 2.0**-10

    def pack(self, matrix: Floats, present: Rows, key: Key | None, signed: bool) -> bytes:
        """The bytes of the rows' exponents, then of the entries, scaled so that a row's largest is in [0.5, 1)."""
        sent = matrix[present].astype(np.float64)
        largest = np.abs(sent).max(axis=1, initial=0.0)
        exponents = np.clip(np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1], -126, 127)
        scaled: bytes = np.ldexp(sent, -exponents[:, None]).astype("<f2").tobytes()
        return bytes(exponents.astype("<i1").tobytes()) + scaled

    def unpack(self, reader: PayloadReader, rows: int, columns: int, signed: bool) -> Floats:
        exponents = np.frombuffer(reader.take(rows), "<i1").astype(np.int32)
        with np.errstate(invalid="ignore"):
            halves = np.frombuffer(reader.take(2 * rows * columns), "<f2").astype(np.float64).reshape(rows, columns)
            return _clip_to_float32(np.ldexp(halves, exponents[:, None]), np.isfinite(halves))


@dataclass(frozen=True)
class QuantisedNumbers:
    """Codes of a few bits in blocks of up to 128 entries, with a scale of 2 bytes (bfloat16) for each block.

    Entries are rounded up or down at random, so that each is right on average, and errors of many clients cancel out.
    If no entry is negative (as in class means after a ReLU), no bit is spent on the sign.
    """

    bits: int

    @property
    def name(self) -> str:
        """The format's part of a codec's name: `q` and the number of bits, for example q8."""
        return f"q{self.bits}"

    @property
    def rounding(self) -> float:
        """An upper bound on |rounding error| / |row| in L2 norms.

        Each of the 128 entries of a block is off by less than one step between codes, so a block's error is at most
        sqrt(128) steps. The step is the block's largest entry divided by the largest code.
        """
        return float(np.sqrt(BLOCK)) / self._find_largest_code(signed=True)

    def _find_largest_code(self, signed: bool) -> int:
        """The largest code of an entry, without its sign."""
        return (1 << (self.bits - 1 if signed else self.bits)) - 1

    def pack(self, matrix: Floats, present: Rows, key: Key | None, signed: bool) -> bytes:
        """The bytes of all scales, row by row, then of all codes."""
        if key is None:
            raise ValueError(f"codec {self.name} rounds at random and needs a key")
        top, columns = self._find_largest_code(signed), matrix.shape[1]
        starts = np.arange(0, columns, BLOCK)
        largest = np.maximum.reduceat(np.abs(matrix), starts, axis=1) if columns else matrix[:, :0]
        scales = _round_up_to_bfloat16(largest.astype(np.float64) / top)
        steps = np.repeat(_decode_bfloat16(scales).astype(np.float64), np.diff([*starts, columns]), axis=1)
        shares = np.divide(matrix, steps, out=np.zeros(matrix.shape), where=(steps > 0) & np.isfinite(steps))
        # Random numbers are drawn for every row, sent or not, so that rounding does not depend on the rows left out.
        codes = np.floor(shares + key.numpy().random(matrix.shape))
        stored = (np.clip(codes, -top if signed else 0, top) + (top if signed else 0)).astype(np.uint8)
        return scales[present].astype("<u2").tobytes() + _pack_codes(stored[present].reshape(-1), self.bits)

    def unpack(self, reader: PayloadReader, rows: int, columns: int, signed: bool) -> Floats:
        if not rows:  # a forged number of columns would not be bounded by the bytes sent
            return np.zeros((0, columns), np.float32)
        blocks = -(-columns // BLOCK)
        scales = np.frombuffer(reader.take(2 * rows * blocks), "<u2").reshape(rows, blocks)
        if bool((scales >> 15).any()):
            raise WireError("the scale of a block of numbers must be 0 or more, found: a negative one")
        codes = _unpack_codes(reader, rows * columns, self.bits).reshape(rows, columns).astype(np.float64)
        if signed:
            codes -= self._find_largest_code(signed)
            if bool((codes > self._find_largest_code(signed)).any()):
                raise WireError(f"expected codes of the format {self.name}, found a number out of range")
        sizes = np.diff([*range(0, columns, BLOCK), columns])
        with np.errstate(invalid="ignore"):
            steps = np.repeat(_decode_bfloat16(scales).astype(np.float64), sizes, axis=1)
            return _clip_to_float32(codes * steps, np.isfinite(steps))


def _clip_to_float32(values: NDArray[np.float64], finite: NDArray[np.bool_]) -> Floats:
    """The values as float32; those that `finite` marks are clipped to the range of float32.

    They can exceed it because scales are rounded up. Other values stay infinite or NaN.
    """
    limit = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(finite, np.clip(values, -limit, limit), values).astype(np.float32)


def _round_up_to_bfloat16(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """The scales as bfloat16, rounded up, so that no entry needs more than the largest code."""
    with np.errstate(over="ignore"):
        words = values.astype(np.float32)
    words = np.where(words.astype(np.float64) < values, np.nextafter(words, np.float32(np.inf)), words)
    halves = words.astype(np.float32).view(np.uint32)
    rounded = (halves >> 16) + ((halves & 0xFFFF) > 0)
    # 0x7FC0 is NaN: one entry that is not finite makes the whole block NaN after decoding.
    return np.where(np.isfinite(words), rounded, 0x7FC0).astype(np.uint16)


def _decode_bfloat16(halves: NDArray[np.uint16]) -> Floats:
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _pack_codes(codes: NDArray[np.uint8], bits: int) -> bytes:
    """The bytes of the codes one after the other, lowest bits of a byte first."""
    if bits == 8:
        return codes.tobytes()
    single = (codes[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(single.reshape(-1), bitorder="little").tobytes()


def _unpack_codes(reader: PayloadReader, count: int, bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return np.frombuffer(reader.take(count), np.uint8)
    single = reader.read_bits(count * bits).astype(np.uint8).reshape(count, bits)
    codes: NDArray[np.uint8] = (single << np.arange(bits, dtype=np.uint8)).sum(1).astype(np.uint8)
    return codes
