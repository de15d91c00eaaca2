"""Statistics as counts and class means, and the bytes of the counts."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.wire.frame import Reader, WireError, varint

STORED_WHOLE = 2**53  # counts up to here are exact in the arithmetic of both sides


def counts_and_means(sums: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Statistics as counts and class means; None if that is impossible (negative counts, sums with a count of 0)."""
    if sums.ndim != 2 or not sums.shape[1] or not sums.is_floating_point():
        return None
    entries = sums.to(torch.float64).numpy()
    counts = entries[:, 0]
    if not np.isfinite(entries).all() or (counts < 0).any() or entries[counts == 0].any():
        return None
    return counts, entries[:, 1:] / np.where(counts > 0, counts, 1.0)[:, None]


def pack_counts(counts: NDArray[np.float64]) -> tuple[bytes, bool]:
    """The bytes of the counts, and whether they have fractions (those of a decayed posterior do)."""
    if (counts == np.floor(counts)).all() and (counts <= STORED_WHOLE).all():
        return b"".join(varint(int(count)) for count in counts), False
    return counts.astype("<f8").tobytes(), True


def unpack_counts(reader: Reader, rows: int, fractional: bool) -> NDArray[np.float64]:
    """The counts of so many rows."""
    if not fractional:
        counts = np.array([reader.varint() for _ in range(rows)], np.float64)
        if (counts > STORED_WHOLE).any():
            raise WireError("a count that is too large")
        return counts
    counts = np.frombuffer(reader.take(8 * rows), "<f8").astype(np.float64)
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise WireError("a count that is negative or not finite")
    return counts
