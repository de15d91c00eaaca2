"""Bytes that are read once, from the front, and never past their end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedlog.wire.frame import WireError

_LONGEST_VARINT = 10  # bytes of a 64-bit number, 7 bits in each


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
