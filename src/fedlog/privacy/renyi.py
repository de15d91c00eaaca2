"""Rényi composition: for DP-SGD's many small steps on samples, together with Gaussian releases of all records' sums.

The moments of both kinds of step add over any adaptive order, so one curve holds a whole run. Sampled Gaussian steps
are those of Mironov, Talwar and Zhang (2019): each record is in a step's sample with probability q, independently
(Poisson sampling), neighbours differ by one record added or removed, and their bound covers both directions. At whole
orders it is a finite sum,

    (alpha - 1) R(alpha) = ln sum_k C(alpha, k) (1 - q)^(alpha - k) q^k exp(k (k - 1) / (2 z^2)).

Between whole orders (alpha - 1) R(alpha) is convex, so the chord bounds it. The way to (epsilon, delta) is that of
Canonne, Kamath and Steinke (2020). All of it is an upper bound; exact composition, where there is no sampling, is in
`calibration`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from fedlog.errors import InputError

Curve = NDArray[np.float64]
"""R(alpha) at each of `ORDERS`."""

_WHOLE = np.concatenate([np.arange(2, 64), np.arange(64, 257, 8), np.arange(288, 1025, 32)]).astype(np.float64)
ORDERS: Curve = np.unique(np.concatenate([_WHOLE, 1 + np.arange(1, 50) / 50, np.arange(2, 12, 0.25)]))


def gaussian_curve(mu_squared: float) -> Curve:
    """R of Gaussian releases that together are mu-GDP: alpha mu^2 / 2."""
    return ORDERS * mu_squared / 2


@lru_cache(maxsize=256)
def _step_curve(sample_rate: float, noise_multiplier: float) -> tuple[float, ...]:
    moments = np.array([_log_moment(int(order), sample_rate, noise_multiplier) for order in _WHOLE])
    # The moment at order 1 is 1. Chords of a convex function lie above it.
    interpolated = np.interp(ORDERS, np.concatenate([[1.0], _WHOLE]), np.concatenate([[0.0], moments]))
    return tuple(float(value) for value in interpolated / (ORDERS - 1))


def _log_moment(order: int, sample_rate: float, noise_multiplier: float) -> float:
    k = np.arange(order + 1, dtype=np.float64)
    if sample_rate == 1:
        return order * (order - 1) / (2 * noise_multiplier**2)
    choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = choose + (order - k) * math.log1p(-sample_rate) + k * math.log(sample_rate)
    return float(logsumexp(terms + k * (k - 1) / (2 * noise_multiplier**2)))


def sampled_gaussian_curve(sample_rate: float, noise_multiplier: float, steps: int) -> Curve:
    """R of that many steps, each on a Poisson sample, with noise of `noise_multiplier` times the clip on the sum."""
    if not (0 < sample_rate <= 1 and noise_multiplier > 0 and math.isfinite(noise_multiplier) and steps >= 0):
        raise InputError(
            f"sampled Gaussian steps need a rate in (0, 1], noise above 0 and a number of steps: {sample_rate!r}, "
            f"{noise_multiplier!r}, {steps!r}"
        )
    return steps * np.array(_step_curve(sample_rate, noise_multiplier))


def curve_epsilon(curve: Curve, delta: float) -> float:
    """The smallest epsilon that the curve gives at delta."""
    found = curve + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(found.min()))


def curve_delta(curve: Curve, epsilon: float) -> float:
    """The smallest delta that the curve gives at epsilon."""
    return math.exp(curve_log_delta(curve, epsilon))


def curve_log_delta(curve: Curve, epsilon: float) -> float:
    """The logarithm of the smallest delta that the curve gives at epsilon: finite where delta is below any float."""
    found = (ORDERS - 1) * (curve - epsilon) - np.log(ORDERS - 1) + ORDERS * np.log1p(-1 / ORDERS)
    return min(0.0, float(found.min()))
