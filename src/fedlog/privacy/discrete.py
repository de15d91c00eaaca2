"""Draw discrete Gaussian noise on an integer grid, exactly, from a cryptographic source.

The low bits of floating-point Gaussian noise can reveal the value under it (Mironov 2012). Here every draw is an
integer, every comparison is between integers, and no logarithm or exponential is computed. The sampler is that of
Canonne, Kamath and Steinke (2020), for many draws at once. Its running time depends on the draws, as in every rejection
sampler; the guarantee does not cover an observer who measures it.

Why the cost can be computed as for exact Gaussian noise: integers plus a *rounded* Gaussian are the rounding of
integers plus a Gaussian, so they are exactly mu-GDP. The discrete Gaussian is so close to the rounded one that the
difference only adds a small stated amount to delta (`bound_rounding_divergence`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedlog.errors import InputError

RandomBytes = Callable[[int], bytes]
"""A function that returns so many random bytes; `os.urandom` in every deployment."""

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

STEPS_PER_STD = 2**24
"""The standard deviation of the noise is at least this many grid steps; see `bound_rounding_divergence`."""

_MAX_STEPS = 2**25
# The square of a larger distance does not fit 64 bits. So far out, a candidate is accepted with probability e^-2048.
_MAX_DISTANCE = 2**31


def choose_grid(std: float) -> float:
    """Return the grid step for noise of this std: the power of two between std / 2^25 and std / 2^24."""
    if not (math.isfinite(std) and std > 0):
        raise InputError(f"the standard deviation of the noise must be a finite number above 0, found: {std!r}")
    return math.ldexp(1.0, math.frexp(std)[1] - 1) / STEPS_PER_STD


def count_grid_steps(std: float, grid: float) -> int:
    """Return the noise std as a whole number of grid steps, rounded up so that there is never too little noise."""
    steps = math.ceil(std / grid)
    if not 4 <= steps <= _MAX_STEPS:
        raise InputError(
            f"the noise std must be 4 to {_MAX_STEPS} grid steps, found: {std / grid:g} (std {std:g}, step {grid:g})",
            hint="use choose_grid(std) as the grid",
        )
    return steps


def bound_rounding_divergence(steps: float) -> float:
    """Bound KL(discrete Gaussian || rounded Gaussian) for one coordinate with a std of `steps` grid steps.

    With u uniform on [-1/2, 1/2], the rounded mass at k is the normal density there times
    E[exp(-u^2 / 2s^2) cosh(k u / s^2)]. By Jensen and ln cosh z >= z^2/2 - z^4/12, the divergence is at most
    E[k^4] / (960 s^8) <= 1 / (320 s^4). The constant 300 instead of 320 covers E[k^4] of the discrete Gaussian, for
    s >= 4.
    """
    if steps < 4:
        raise InputError(f"the noise must have a standard deviation of at least 4 grid steps, found: {steps:g}")
    return 1 / (300 * steps**4)


@lru_cache
def bound_share_divergence(steps: float, shares: int) -> float:
    """Bound |log probability ratio| between a sum of `shares` discrete Gaussians and one discrete Gaussian.

    The sum and the single Gaussian have the same variance. The bound holds for one coordinate; `steps` is the std of
    one share in grid steps. Kairouz, Liu and Steinke (2021):
    10 * sum_{k < shares} exp(-2 pi^2 steps^2 k / (k + 1)).
    """
    if steps < 0.5:
        raise InputError(f"each share of the noise must have a std of at least half a grid step, found: {steps:g}")
    return 10 * math.fsum(math.exp(-2 * math.pi**2 * steps**2 * k / (k + 1)) for k in range(1, shares))


def draw_discrete_gaussian(count: int, steps: int, source: RandomBytes = os.urandom) -> Integers:
    """Draw `count` integers k, each with probability exactly proportional to exp(-k^2 / (2 steps^2))."""
    if not 1 <= steps <= _MAX_STEPS:
        raise InputError(f"the noise std must be 1 to {_MAX_STEPS} whole grid steps, found: {steps}")
    kept: list[Integers] = []
    missing = count
    while missing > 0:
        candidates = _draw_discrete_laplace(2 * missing + 16, steps, source)
        # Any Laplace scale gives the right distribution; with scale = steps the exponent is (|Y| - s)^2 / (2 s^2).
        numerator = np.minimum(np.abs(np.abs(candidates) - steps), _MAX_DISTANCE) ** 2
        accepted = candidates[_draw_bernoulli_exp(numerator, np.full_like(numerator, 2 * steps * steps), source)]
        kept.append(accepted[:missing])
        missing -= len(kept[-1])
    return np.concatenate([np.zeros(0, dtype=np.int64), *kept])


def _draw_discrete_laplace(tries: int, scale: int, source: RandomBytes) -> Integers:
    """Attempt `tries` draws of a discrete Laplace distribution with integer scale; return the accepted draws."""
    remainder = _draw_below(np.full(tries, scale, dtype=np.int64), source)
    remainder = remainder[_draw_bernoulli_exp(remainder, np.full_like(remainder, scale), source)]
    magnitude = remainder + scale * _count_successes_before_failure(len(remainder), source)
    sign = 1 - 2 * _draw_below(np.full(len(magnitude), 2, dtype=np.int64), source)
    # Minus zero is rejected: zero would otherwise be drawn twice as often.
    return (sign * magnitude)[(sign > 0) | (magnitude > 0)]


def _count_successes_before_failure(count: int, source: RandomBytes) -> Integers:
    """Toss a coin with success probability 1/e until it fails, and count the successes; do so `count` times."""
    successes = np.zeros(count, dtype=np.int64)
    running = np.arange(count)
    while len(running):
        ones = np.ones(len(running), dtype=np.int64)
        running = running[_draw_bernoulli_fraction_exp(ones, ones, source)]
        successes[running] += 1
    return successes


def _draw_bernoulli_exp(numerator: Integers, denominator: Integers, source: RandomBytes) -> Booleans:
    """Draw for each element a Boolean that is True with probability exactly exp(-numerator / denominator)."""
    whole, rest = np.divmod(numerator, denominator)
    outcome = _draw_bernoulli_fraction_exp(rest, denominator, source)
    running = np.flatnonzero(outcome & (whole > 0))
    while len(running):
        ones = np.ones(len(running), dtype=np.int64)
        success = _draw_bernoulli_fraction_exp(ones, ones, source)
        outcome[running[~success]] = False
        whole[running] -= 1
        running = running[success & (whole[running] > 0)]
    return outcome


def _draw_bernoulli_fraction_exp(numerator: Integers, denominator: Integers, source: RandomBytes) -> Booleans:
    """Draw as `_draw_bernoulli_exp` does, for fractions gamma = numerator / denominator of at most 1.

    After von Neumann: toss coins with probability gamma/1, gamma/2, ... until one fails. The number of the first coin
    that fails is odd with probability 1 - gamma + gamma^2/2! - ... = exp(-gamma).
    """
    odd = np.ones(len(numerator), dtype=bool)
    running = np.arange(len(numerator))
    place = 1
    while len(running):
        success = _draw_below(denominator[running] * place, source) < numerator[running]
        running = running[success]
        odd[running] = ~odd[running]
        place += 1
    return odd


def _draw_below(bound: Integers, source: RandomBytes) -> Integers:
    """Draw for each bound a uniform integer in [0, bound), by rejection: a remainder would favour small numbers."""
    limit = bound.astype(np.uint64)
    drawn = np.empty(len(bound), dtype=np.uint64)
    missing = np.arange(len(bound))
    while len(missing):
        words = np.frombuffer(source(8 * len(missing)), dtype="<u8")
        parts = limit[missing]
        # The lowest 2^64 mod bound = (2^64 - bound) mod bound words are rejected; the rest divides evenly.
        fair = words >= (np.uint64(0) - parts) % parts
        drawn[missing[fair]] = words[fair] % parts[fair]
        missing = missing[~fair]
    return drawn.astype(np.int64)
