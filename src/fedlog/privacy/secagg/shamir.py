"""Shamir's secret sharing over a prime field: `threshold` shares give the secret, fewer reveal nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fedlog.errors import InputError
from fedlog.privacy.discrete import RandomBytes

PRIME: Final = 2**256 + 297
"""The smallest prime above every 32-byte number."""

SHARE_BYTES: Final = 33


def split_secret(secret: bytes, threshold: int, points: Sequence[int], entropy: RandomBytes) -> dict[int, bytes]:
    """Split a secret into shares, the values at these points of a random polynomial whose value at 0 is the secret."""
    if len(secret) != 32:
        raise InputError(f"expected a secret of 32 bytes, found: {len(secret)} bytes")
    if not 1 <= threshold <= len(points) or len(set(points)) != len(points) or min(points) < 1:
        raise InputError(
            f"to split a secret, the threshold must be 1 to {len(points)} (the number of points), and the points must "
            f"be distinct and above 0, found: threshold {threshold}, points {list(points)}"
        )
    # 48 bytes reduced modulo the prime are uniform to within 2^-127.
    raw = entropy(48 * (threshold - 1))
    drawn = [int.from_bytes(raw[48 * i : 48 * i + 48], "big") % PRIME for i in range(threshold - 1)]
    coefficients = [int.from_bytes(secret, "big"), *drawn]
    shares = {}
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % PRIME
        shares[point] = value.to_bytes(SHARE_BYTES, "big")
    return shares


def compute_lagrange_weights(points: Sequence[int]) -> dict[int, int]:
    """Compute point -> Lagrange weight for the value at 0; all secrets shared at these points have the same weights."""
    weights = {}
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        weights[point] = above * pow(below, -1, PRIME) % PRIME
    return weights


def combine_shares(shares: Mapping[int, bytes], weights: Mapping[int, int]) -> bytes | None:
    """Combine the shares at the points of `weights` into the secret; None if they give no 32-byte secret."""
    total = 0
    for point, weight in weights.items():
        total += int.from_bytes(shares[point], "big") * weight
    secret = total % PRIME
    return secret.to_bytes(32, "big") if secret < 2**256 else None
