"""Add up the privacy cost of DP-SGD's many small steps and of Gaussian releases, by Rényi divergences.

The Rényi divergences R(alpha) of steps and releases add up under adaptive composition, so one curve describes a run.
The bound for sampled Gaussian steps is that of Mironov, Talwar and Zhang (2019): each record is in the sample of a step
with probability q, independently (Poisson sampling), and neighbours differ by one record, added or removed. At whole
orders the bound is a finite sum,

    (alpha - 1) R(alpha) = ln sum_k C(alpha, k) (1 - q)^(alpha - k) q^k exp(k (k - 1) / (2 z^2)).

Between whole orders (alpha - 1) R(alpha) is convex, so a straight line between them bounds it. The conversion to
(epsilon, delta) is that of Canonne, Kamath and Steinke (2020). All of this is an upper bound; the exact composition
without sampling is in `calibration`.
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


def compute_gaussian_curve(mu_squared: float) -> Curve:
    """Compute the Rényi divergences R(alpha) = alpha mu^2 / 2 of Gaussian releases that together are mu-GDP."""
    return ORDERS * mu_squared / 2


@lru_cache(maxsize=256)
def _compute_curve_of_one_step(sample_rate: float, noise_multiplier: float) -> tuple[float, ...]:
    moments = np.array([_compute_log_moment(int(order), sample_rate, noise_multiplier) for order in _WHOLE])
    # The logarithm of the moment at order 1 is 0. Straight lines between points of a convex function lie above it.
    interpolated = np.interp(ORDERS, np.concatenate([[1.0], _WHOLE]), np.concatenate([[0.0], moments]))
    return tuple(float(value) for value in interpolated / (ORDERS - 1))


def _compute_log_moment(order: int, sample_rate: float, noise_multiplier: float) -> float:
    k = np.arange(order + 1, dtype=np.float64)
    if sample_rate == 1:
        return order * (order - 1) / (2 * noise_multiplier**2)
    choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = choose + (order - k) * math.log1p(-sample_rate) + k * math.log(sample_rate)
    return float(logsumexp(terms + k * (k - 1) / (2 * noise_multiplier**2)))


def compute_dp_sgd_curve(sample_rate: float, noise_multiplier: float, steps: int) -> Curve:
    """Compute the Rényi divergences R(alpha) of this number of DP-SGD steps on Poisson samples of records.

    The noise of a step has a std of `noise_multiplier` times the clip.
    """
    if not (0 < sample_rate <= 1 and noise_multiplier > 0 and math.isfinite(noise_multiplier) and steps >= 0):
        raise InputError(
            "DP-SGD needs a sample rate above 0 and at most 1, a noise multiplier above 0, and 0 or more steps, "
            f"found: sample rate {sample_rate!r}, noise multiplier {noise_multiplier!r}, steps {steps!r}"
        )
    return steps * np.array(_compute_curve_of_one_step(sample_rate, noise_multiplier))


def convert_curve_to_epsilon(curve: Curve, delta: float) -> float:
    """Return the smallest epsilon that these Rényi divergences guarantee at delta."""
    found = curve + np.log1p(-1 / ORDERS) - (math.log(delta) + np.log(ORDERS)) / (ORDERS - 1)
    return max(0.0, float(found.min()))


def convert_curve_to_delta(curve: Curve, epsilon: float) -> float:
    """Return the smallest delta that these Rényi divergences guarantee at epsilon."""
    return math.exp(convert_curve_to_log_delta(curve, epsilon))


def convert_curve_to_log_delta(curve: Curve, epsilon: float) -> float:
    """Return the logarithm of `convert_curve_to_delta`, for a delta that may be too small for a float."""
    found = (ORDERS - 1) * (curve - epsilon) - np.log(ORDERS - 1) + ORDERS * np.log1p(-1 / ORDERS)
    return min(0.0, float(found.min()))
