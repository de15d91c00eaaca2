"""The Rényi moments of sampled Gaussian steps, against the integral that defines them."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from fedlog.privacy.renyi import ORDERS, compute_dp_sgd_curve, compute_gaussian_curve


def divergence(order: float, rate: float, noise: float) -> float:
    """R(order) of one step: the mixture of N(0, z^2) and N(1, z^2) from N(0, z^2), by quadrature with 20 digits."""
    with mpmath.workdps(20):
        q, z, alpha = mpmath.mpf(rate), mpmath.mpf(noise), mpmath.mpf(order)

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            ratio = (1 - q) + q * mpmath.exp((2 * x - 1) / (2 * z**2))
            return mpmath.npdf(x, 0, z) * ratio**alpha

        # The mass lies around 0, where nothing was sampled, and around the order, where the record always was.
        reach = 12 * z
        places = sorted({-reach, mpmath.mpf(0), reach, alpha - reach, alpha, alpha + reach})
        return float(mpmath.log(mpmath.quad(integrand, places)) / (alpha - 1))


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.1, 0.8), (0.5, 4.0), (1.0, 2.0)])
def test_the_moments_are_those_of_the_defining_integral(rate: float, noise: float) -> None:
    curve = compute_dp_sgd_curve(rate, noise, 1)
    for order in (2.0, 8.0, 20.0):
        found = float(curve[np.flatnonzero(order == ORDERS)[0]])
        assert found == pytest.approx(divergence(order, rate, noise), rel=1e-9)
    for order in (1.5, 5.75):
        # A chord of the convex logarithm of the moment: it bounds it.
        below, above = math.floor(order), math.floor(order) + 1
        ends = [0.0 if end == 1 else (end - 1) * divergence(end, rate, noise) for end in (below, above)]
        chord = (ends[0] + (order - below) * (ends[1] - ends[0])) / (order - 1)
        found = float(curve[np.argmin(abs(ORDERS - order))])
        assert found == pytest.approx(chord, rel=1e-9)
        assert found >= divergence(order, rate, noise)


def test_steps_add_and_a_step_on_everyone_is_a_gaussian_release() -> None:
    assert np.allclose(compute_dp_sgd_curve(0.1, 1.3, 7), 7 * compute_dp_sgd_curve(0.1, 1.3, 1), rtol=1e-12)
    whole = np.round(ORDERS) == ORDERS
    assert np.allclose(compute_dp_sgd_curve(1.0, 2.0, 1)[whole], compute_gaussian_curve(0.25)[whole], rtol=1e-12)
