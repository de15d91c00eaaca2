"""How the floats of an array become bytes: as they are, as halves, or as small codes in blocks with a scale.

An array is seen as a matrix: its first dimension are the rows, all others together the columns. Blocks never cross a
row, since rows (classes, channels) differ in size more than the entries of one row do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedlog.core.keys import Key
from fedlog.wire.frame import Reader, WireError

Floats = NDArray[np.float32]
Rows = NDArray[np.bool_]  # which rows of a matrix are sent
BLOCK = 128  # entries behind one scale


class Numbers(Protocol):
    """A format of floats. `rounding`: the largest error in the norm of a row, in units of its largest entry."""

    @property
    def name(self) -> str: ...

    @property
    def rounding(self) -> float: ...

    def pack(self, matrix: Floats, present: Rows, key: Key | None, signed: bool) -> bytes: ...

    def unpack(self, reader: Reader, rows: int, columns: int, signed: bool) -> Floats: ...


@dataclass(frozen=True)
class Singles:
    """4 bytes each, as they are."""

    name: str = "f32"
    rounding: float = 2.0**-24

    def pack(self, matrix: Floats, present: Rows, key: Key | None, signed: bool) -> bytes:
        """The entries, little endian."""
        return matrix[present].astype("<f4").tobytes()

    def unpack(self, reader: Reader, rows: int, columns: int, signed: bool) -> Floats:
        """The entries of a matrix."""
        return np.frombuffer(reader.take(4 * rows * columns), "<f4").astype(np.float32).reshape(rows, columns)


@dataclass(frozen=True)
class Halves:
    """An exponent for each row (1 byte), then 2 bytes an entry: no size of entries can overflow."""

    name: str = "f16"
    rounding: float = 2.0**-10

    def pack(self, matrix: Floats, present: Rows, key: Key | None, signed: bool) -> bytes:
        """The exponents that bring the largest entry of each row into [0.5, 1), then the scaled entries."""
        sent = matrix[present].astype(np.float64)
        largest = np.abs(sent).max(axis=1, initial=0.0)
        exponents = np.clip(np.frexp(np.where(np.isfinite(largest), largest, 0.0))[1], -126, 127)
        scaled: bytes = np.ldexp(sent, -exponents[:, None]).astype("<f2").tobytes()
        return bytes(exponents.astype("<i1").tobytes()) + scaled

    def unpack(self, reader: Reader, rows: int, columns: int, signed: bool) -> Floats:
        """The entries of a matrix."""
        exponents = np.frombuffer(reader.take(rows), "<i1").astype(np.int32)
        with np.errstate(invalid="ignore"):
            halves = np.frombuffer(reader.take(2 * rows * columns), "<f2").astype(np.float64).reshape(rows, columns)
            return _clip_to_float32(np.ldexp(halves, exponents[:, None]), np.isfinite(halves))


@dataclass(frozen=True)
class Codes:
    """Codes of a few bits in blocks of up to 128 entries, with a scale of 2 bytes (bfloat16) for each block.

    Rounding is up or down by chance, so that every entry is right on average and errors of many clients cancel.
    Entries that are never negative, as class means behind a ReLU are, spend no code on a sign.
    """

    bits: int

    @property
    def name(self) -> str:
        """The name in a codec: `q` and the number of bits."""
        return f"q{self.bits}"

    @property
    def rounding(self) -> float:
        """An entry is off by less than a step; the norm of a block by less than sqrt(128) of them."""
        return float(np.sqrt(BLOCK)) / self._top(signed=True)

    def _top(self, signed: bool) -> int:
        """The largest code of an entry, its sign apart."""
        return (1 << (self.bits - 1 if signed else self.bits)) - 1

    def pack(self, matrix: Floats, present: Rows, key: Key | None, signed: bool) -> bytes:
        """All scales, row by row, then all codes."""
        if key is None:
            raise ValueError(f"codec {self.name} rounds by chance, and needs a key for it")
        top, columns = self._top(signed), matrix.shape[1]
        starts = np.arange(0, columns, BLOCK)
        largest = np.maximum.reduceat(np.abs(matrix), starts, axis=1) if columns else matrix[:, :0]
        scales = _bfloat16_above(largest.astype(np.float64) / top)
        steps = np.repeat(_from_bfloat16(scales).astype(np.float64), np.diff([*starts, columns]), axis=1)
        shares = np.divide(matrix, steps, out=np.zeros(matrix.shape), where=(steps > 0) & np.isfinite(steps))
        # Drawn for every row, sent or not: what is rounded does not depend on which rows are left out.
        codes = np.floor(shares + key.numpy().random(matrix.shape))
        stored = (np.clip(codes, -top if signed else 0, top) + (top if signed else 0)).astype(np.uint8)
        return scales[present].astype("<u2").tobytes() + _pack_codes(stored[present].reshape(-1), self.bits)

    def unpack(self, reader: Reader, rows: int, columns: int, signed: bool) -> Floats:
        """The entries of a matrix."""
        if not rows:  # and then the columns are bounded by nothing that was sent
            return np.zeros((0, columns), np.float32)
        blocks = -(-columns // BLOCK)
        scales = np.frombuffer(reader.take(2 * rows * blocks), "<u2").reshape(rows, blocks)
        if bool((scales >> 15).any()):
            raise WireError("a block with a negative scale")
        codes = _unpack_codes(reader, rows * columns, self.bits).reshape(rows, columns).astype(np.float64)
        if signed:
            codes -= self._top(signed)
            if bool((codes > self._top(signed)).any()):
                raise WireError(f"a number that is no code of {self.name}")
        sizes = np.diff([*range(0, columns, BLOCK), columns])
        with np.errstate(invalid="ignore"):
            steps = np.repeat(_from_bfloat16(scales).astype(np.float64), sizes, axis=1)
            return _clip_to_float32(codes * steps, np.isfinite(steps))


def _clip_to_float32(values: NDArray[np.float64], finite: NDArray[np.bool_]) -> Floats:
    """The values as float32, finite ones cut to its range: a scale that was rounded up may lead beyond it."""
    limit = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(finite, np.clip(values, -limit, limit), values).astype(np.float32)


def _bfloat16_above(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    """float32 numbers as bfloat16, rounded up, so that no entry lies beyond the largest code."""
    with np.errstate(over="ignore"):
        words = values.astype(np.float32)
    words = np.where(words.astype(np.float64) < values, np.nextafter(words, np.float32(np.inf)), words)
    halves = words.astype(np.float32).view(np.uint32)
    rounded = (halves >> 16) + ((halves & 0xFFFF) > 0)
    # A block with an entry that is not finite says so as a whole: what comes out is not finite either.
    return np.where(np.isfinite(words), rounded, 0x7FC0).astype(np.uint16)


def _from_bfloat16(halves: NDArray[np.uint16]) -> Floats:
    return (halves.astype(np.uint32) << 16).view(np.float32)


def _pack_codes(codes: NDArray[np.uint8], bits: int) -> bytes:
    """Codes one behind the other, lowest bits of a byte first."""
    if bits == 8:
        return codes.tobytes()
    single = (codes[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(single.reshape(-1), bitorder="little").tobytes()


def _unpack_codes(reader: Reader, count: int, bits: int) -> NDArray[np.uint8]:
    if bits == 8:
        return np.frombuffer(reader.take(count), np.uint8)
    single = reader.bits(count * bits).astype(np.uint8).reshape(count, bits)
    codes: NDArray[np.uint8] = (single << np.arange(bits, dtype=np.uint8)).sum(1).astype(np.uint8)
    return codes
