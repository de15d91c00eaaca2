"""Encode real vectors as whole numbers modulo a power of two, and choose a modulus that holds their noisy sum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlog.errors import InputError

Words = NDArray[np.uint64]
"""Whole numbers modulo 2^64, of which only the lowest `value_bytes` bytes are used."""

_MAX_BYTES = 7


@dataclass(frozen=True)
class FixedPoint:
    """An encoding of values as multiples of `grid`, modulo 256^value_bytes; a sum outside the range wraps around."""

    grid: float
    value_bytes: int
    wrap_probability: float = 0.0
    """A bound on the chance that a noisy sum wraps around; it is added to delta."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.grid) and self.grid > 0 and 1 <= self.value_bytes <= _MAX_BYTES):
            raise InputError(
                f"a fixed-point encoding needs a grid step above 0 and 1 to {_MAX_BYTES} bytes per value, found: {self}"
            )

    @property
    def half_range(self) -> int:
        """The number of grid steps that fit on either side of zero."""
        return 1 << (8 * self.value_bytes - 1)

    def encode_words(self, values: NDArray[np.float64]) -> Words:
        """Encode values as words (whole numbers of grid steps, modulo a power of two), rounded towards zero.

        An out-of-range value raises no error, and a value that is not finite counts as 0: in a private run, an error
        that depends on the data would be a leak.
        """
        steps = np.trunc(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0) / self.grid)
        # fmod keeps the conversion defined; 2^62 is a multiple of every modulus here.
        return np.fmod(steps, 2.0**62).astype(np.int64).astype(np.uint64)

    def encode_words_or_raise(self, values: NDArray[np.float64], parties: int) -> Words:
        """Encode values as words; raise InputError if a sum of `parties` such vectors could wrap around.

        The error depends on the data, so call this only in a run without privacy.
        """
        bound = self.half_range // parties * self.grid
        if not np.all(np.abs(values) < bound):
            worst = float(np.max(np.abs(values)))
            raise InputError(
                f"values must be below {bound:g} for a secure sum of {parties} clients, found: {worst:g}",
                hint="use a coarser grid or more bytes per value",
            )
        return self.encode_words(values)

    def decode_words(self, words: Words) -> NDArray[np.float64]:
        """Decode words into values, reading each word as a signed (two's complement) number of grid steps."""
        shift = np.uint64(64 - 8 * self.value_bytes)
        signed = (words << shift).view(np.int64) >> np.int64(64 - 8 * self.value_bytes)
        return signed.astype(np.float64) * self.grid


def choose_fixed_point(
    grid: float, sum_bound: float, std_of_sum: float, coordinates: int, wrap_probability: float = 2.0**-80
) -> FixedPoint:
    """Choose the encoding with the fewest bytes in which the noisy sum wraps around with at most this probability.

    `sum_bound` is the largest absolute value of a coordinate of the sum without noise: the number of records times the
    clip's bound, or the number of clients times the message norm. Sums of discrete Gaussians have sub-Gaussian tails:
    one coordinate is beyond z * std with probability at most p = 2 exp(-z^2 / 2), so the probability that at least one
    of them is beyond is at most p * `coordinates`.
    """
    if not (sum_bound >= 0 and std_of_sum >= 0 and 0 < wrap_probability < 1 and coordinates >= 1):
        raise InputError(
            "a secure sum needs a bound and a std of 0 or more, a probability between 0 and 1, and 1 or more "
            f"coordinates, found: bound {sum_bound!r}, std {std_of_sum!r}, probability {wrap_probability!r}, "
            f"coordinates {coordinates}"
        )
    reach = sum_bound + std_of_sum * math.sqrt(2 * math.log(2 * coordinates / wrap_probability))
    for value_bytes in range(1, _MAX_BYTES + 1):
        candidate = FixedPoint(grid, value_bytes, wrap_probability if std_of_sum > 0 else 0.0)
        if reach / grid + 1 < candidate.half_range:
            return candidate
    raise InputError(
        f"a sum of up to {reach:g} with a grid step of {grid:g} needs more than {_MAX_BYTES} bytes per value",
        hint="bound the number of records, or use a coarser grid",
    )


def pack_words(words: Words, value_bytes: int) -> bytes:
    """Pack the lowest `value_bytes` bytes of each word, little-endian."""
    return words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :value_bytes].tobytes()


def unpack_words(blob: bytes, value_bytes: int) -> Words:
    """Unpack words from bytes that `pack_words` made, or from a key stream."""
    padded = np.zeros((len(blob) // value_bytes, 8), dtype=np.uint8)
    padded[:, :value_bytes] = np.frombuffer(blob, dtype=np.uint8).reshape(-1, value_bytes)
    return padded.view("<u8").reshape(-1).astype(np.uint64)
