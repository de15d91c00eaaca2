"""Compute the noise that a budget needs, and the epsilon of given noise: exactly, or by the paper's formula.

k adaptive Gaussian releases of L2 sensitivity D with standard deviation sigma are exactly mu-GDP with
mu = sqrt(k) * D / sigma (Dong, Roth and Su 2022), which means

    delta(epsilon) = Phi(-epsilon/mu + mu/2) - exp(epsilon) * Phi(-epsilon/mu - mu/2).

With x = epsilon/mu - mu/2 and y = x + mu, exp(epsilon) is the ratio of the normal density at x and at y, so
delta = density(x) * (R(x) - R(y)) with R the Mills ratio. This form does not overflow, and is precise for a tiny delta
too. Every result is rounded to the safe side: more noise, or a larger epsilon, never less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np
from scipy.special import erfcx, log_ndtr

from fedlog.errors import InputError
from fedlog.privacy.guarantee import Budget

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
# For larger t, the asymptotic series of 1 - t R(t) is more precise than the difference itself.
_SERIES_FROM = 30.0
_PRIVATE_SIDE = 1e-12


def compute_log_delta(epsilon: float, mu: float) -> float:
    """Compute the logarithm of delta(epsilon) of a mu-GDP mechanism; -inf if it is too small for a float."""
    if epsilon < 0 or mu < 0 or math.isnan(epsilon) or math.isnan(mu):
        raise InputError(f"epsilon and mu must not be negative, found: epsilon {epsilon!r}, mu {mu!r}")
    if mu == 0 or epsilon == math.inf:
        return -math.inf
    if mu == math.inf:
        return 0.0
    x = epsilon / mu - mu / 2
    if mu < 1:
        gap = _compute_mills_ratio_drop(x, mu)
        return -math.inf if gap == 0 else -x * x / 2 - _LOG_SQRT_2PI + math.log(gap)
    if x < 0:
        # exp(epsilon) Phi(-y) = density(x) R(y) stays below Phi(-x), which is at least one half here.
        subtracted = math.exp(-x * x / 2 - _LOG_SQRT_2PI) * _compute_mills_ratio(x + mu)
        return float(log_ndtr(-x)) + math.log1p(-subtracted * math.exp(-float(log_ndtr(-x))))
    gap = _compute_mills_ratio(x) - _compute_mills_ratio(x + mu)
    return -math.inf if gap <= 0 else -x * x / 2 - _LOG_SQRT_2PI + math.log(gap)


def _compute_mills_ratio(t: float) -> float:
    """Compute the Mills ratio R(t) = Phi(-t) / density(t)."""
    return math.sqrt(math.pi / 2) * float(erfcx(t / math.sqrt(2)))


def _compute_mills_ratio_drop(x: float, mu: float) -> float:
    """Compute the difference R(x) - R(x + mu) of Mills ratios for mu < 1, by an integral: subtracting loses digits."""
    t = x + mu * (_NODES + 1) / 2
    direct = 1 - t * math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))
    inverse = 1 / np.maximum(t, _SERIES_FROM) ** 2
    # 1/t^2 - 3/t^4 + 15/t^6 - ..., by Horner from the ninth term.
    series = np.zeros_like(t)
    for odd in range(17, 0, -2):
        series = inverse * odd * (1 - series) if odd > 1 else inverse * (1 - series)
    slope = np.where(t < _SERIES_FROM, direct, series)
    return float(mu / 2 * (_WEIGHTS @ slope))


def compute_delta(epsilon: float, mu: float) -> float:
    """Compute the smallest delta for which a mu-GDP mechanism is (epsilon, delta)-private."""
    return min(1.0, math.exp(compute_log_delta(epsilon, mu)))


def find_largest_mu(budget: Budget) -> float:
    """Return the largest mu for which a mu-GDP mechanism stays within the budget."""
    target = math.log(budget.delta)

    def compute_excess_log_delta(log_mu: float) -> float:
        return max(compute_log_delta(budget.epsilon, math.exp(log_mu)), -1e300) - target

    mu = math.exp(_find_root(compute_excess_log_delta, start=0.0))
    while compute_log_delta(budget.epsilon, mu) > target:
        mu *= 1 - _PRIVATE_SIDE
    return mu


def compute_epsilon(mu: float, delta: float, noise_distance: float = 0.0) -> float:
    """Compute the smallest epsilon for which a mu-GDP mechanism is (epsilon, delta)-private; inf if there is none.

    `noise_distance` bounds the total-variation distance between the noise as drawn and exact Gaussian noise. It uses
    up (1 + exp(epsilon)) * noise_distance of delta.
    """
    epsilon = _compute_gaussian_epsilon(mu, delta)
    if noise_distance == 0 or epsilon == math.inf:
        return epsilon
    for _ in range(200):
        if epsilon > 700:
            return math.inf
        excess = compute_delta(epsilon, mu) + compute_delta_used_by_grid(epsilon, noise_distance) - delta
        if excess <= 0:
            return epsilon
        # Convex in exp(epsilon), so Newton's steps from the left never pass the smallest root; the added bit ends them.
        slope = noise_distance - math.exp(float(log_ndtr(-epsilon / mu - mu / 2)))
        if slope >= 0:
            return math.inf
        epsilon = (epsilon + math.log1p(-excess / slope * math.exp(-epsilon))) * (1 + _PRIVATE_SIDE)
    return math.inf


def _compute_gaussian_epsilon(mu: float, delta: float) -> float:
    target = math.log(delta)
    if compute_log_delta(0.0, mu) <= target:
        return 0.0
    if mu == math.inf:
        return math.inf

    def compute_unused_log_delta(log_epsilon: float) -> float:
        return target - max(compute_log_delta(math.exp(log_epsilon), mu), -1e300)

    epsilon = math.exp(_find_root(compute_unused_log_delta, start=math.log(max(mu, mu * mu))))
    while compute_log_delta(epsilon, mu) > target:
        epsilon *= 1 + _PRIVATE_SIDE
    return epsilon


def find_smallest_sigma(budget: Budget, releases: int, sensitivity: float, noise_distance: float = 0.0) -> float:
    """Return the smallest noise std with which this number of Gaussian releases stays within the budget."""
    _check_releases_and_sensitivity(releases, sensitivity)
    mu = max(find_largest_mu(kept) for kept in list_gaussian_budgets(budget, noise_distance))
    return math.sqrt(releases) * sensitivity / mu * (1 + _PRIVATE_SIDE)


def compute_delta_used_by_grid(epsilon: float, noise_distance: float) -> float:
    """Compute the part of delta that discrete noise uses up; `noise_distance` is its distance from Gaussian noise."""
    return (1 + math.exp(min(epsilon, 700.0))) * noise_distance


def list_gaussian_budgets(budget: Budget, noise_distance: float) -> list[Budget]:
    """List budgets for Gaussian noise: noise that meets any of them meets `budget` if it is drawn on a grid instead.

    The grid uses up a part of delta, so a listed budget has only the rest as its delta. The part grows with e^epsilon.
    So if epsilon is large, budgets with a smaller epsilon are listed too: they keep more of delta, and may need less
    noise. Raise InputError if no delta is left at any epsilon.
    """
    smaller = np.arange(10.0, min(budget.epsilon, 60.0), 0.5) if noise_distance else ()
    kept = {float(e): budget.delta - compute_delta_used_by_grid(e, noise_distance) for e in (budget.epsilon, *smaller)}
    found = [Budget(epsilon, left) for epsilon, left in kept.items() if left > 0]
    if not found:
        raise InputError(
            f"delta {budget.delta:g} leaves no room for the grid of the discrete noise, which alone needs a delta of "
            f"{compute_delta_used_by_grid(min(budget.epsilon, 10.0), noise_distance):.2g}",
            hint="use a larger delta or a smaller epsilon",
        )
    return found


def compute_sigma_by_paper_formula(budget: Budget, releases: int, sensitivity: float) -> float:
    """Compute the noise std by the paper's Theorem 4: sensitivity * sqrt(8 k ln(e + epsilon/delta)) / epsilon."""
    _check_releases_and_sensitivity(releases, sensitivity)
    return sensitivity * math.sqrt(8 * releases * math.log(math.e + budget.epsilon / budget.delta)) / budget.epsilon


def compute_epsilon_by_paper_formula(mu: float, delta: float) -> float:
    """Compute the epsilon by the paper's Theorem 4, for mu = sqrt(k) * sensitivity / sigma: it is no guarantee."""
    if mu == 0:
        return 0.0

    def compute_log_ratio_to_formula(log_epsilon: float) -> float:
        # epsilon^2 / ln(e + epsilon/delta) grows with epsilon, so there is one root.
        epsilon = math.exp(log_epsilon)
        return 2 * log_epsilon - math.log(8 * mu * mu) - math.log(math.log(math.e + epsilon / delta))

    return math.exp(_find_root(compute_log_ratio_to_formula, start=math.log(mu)))


def _check_releases_and_sensitivity(releases: int, sensitivity: float) -> None:
    if releases < 1:
        raise InputError(f"the number of releases must be at least 1, found: {releases!r}")
    if not (math.isfinite(sensitivity) and sensitivity > 0):
        raise InputError(f"the sensitivity must be a finite number above 0, found: {sensitivity!r}")


def _find_root(rising: Callable[[float], float], start: float) -> float:
    """Find the root of an increasing function, starting the search at `start` in both directions."""
    low = high = start
    step = 1.0
    while rising(low) > 0:
        low -= step
        step *= 2
    step = 1.0
    while rising(high) < 0:
        high += step
        step *= 2
    if low == high:
        return low
    from scipy.optimize import brentq  # here: slow to import, and most runs do not need it

    return cast(float, brentq(rising, low, high, xtol=1e-15, rtol=4 * np.finfo(float).eps, maxiter=500))
