"""Calibration against two independent computations: high precision, and Google's PLD accountant."""

from __future__ import annotations

import math

import dp_accounting
import mpmath
import pytest
from dp_accounting import pld

from fedlog.privacy.calibration import (
    compute_delta,
    compute_epsilon,
    compute_epsilon_by_paper_formula,
    compute_log_delta,
    compute_sigma_by_paper_formula,
    find_largest_mu,
    find_smallest_sigma,
)
from fedlog.privacy.guarantee import Budget

EPSILONS = (1e-8, 1e-4, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 300.0)
MUS = (1e-8, 1e-4, 1e-3, 0.01, 0.1, 0.5, 0.99, 1.0, 1.01, 2.0, 5.0, 20.0, 40.0)


def log_delta_in_high_precision(epsilon: float, mu: float) -> float:
    # The two terms agree in all but a fraction mu^2 / epsilon of their digits: 80 digits are ample for the grid above.
    with mpmath.workdps(80):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return float(mpmath.log(mpmath.ncdf(-e / m + m / 2) - mpmath.exp(e) * mpmath.ncdf(-e / m - m / 2)))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_log_delta_keeps_its_digits_over_the_whole_range(epsilon: float) -> None:
    seen = 0
    for mu in MUS:
        if epsilon / mu > 1e4:
            continue
        assert compute_log_delta(epsilon, mu) == pytest.approx(
            log_delta_in_high_precision(epsilon, mu), rel=1e-12, abs=1e-12
        )
        seen += 1
    assert seen >= 3


def test_the_multiplier_of_the_worked_example() -> None:
    # epsilon 0.5, delta 0.01, 100 releases, sensitivity 1; dp-accounting's PLD gives the same four decimals.
    assert find_smallest_sigma(Budget(0.5, 0.01), releases=100, sensitivity=1.0) == pytest.approx(31.4691, abs=5e-5)
    assert find_smallest_sigma(Budget(1.0, 1e-5), releases=100, sensitivity=1.0) == pytest.approx(37.3063, abs=5e-5)


@pytest.mark.parametrize(
    ("epsilon", "delta", "releases"), [(0.5, 0.01, 100), (1.0, 1e-5, 100), (5.0, 1e-5, 10), (0.5, 1e-6, 1)]
)
def test_the_pld_accountant_agrees(epsilon: float, delta: float, releases: int) -> None:
    multiplier = find_smallest_sigma(Budget(epsilon, delta), releases, sensitivity=1.0)
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(dp_accounting.GaussianDpEvent(multiplier), releases)
    # The accountant is pessimistic by its discretisation, so its epsilon may only be a little above ours.
    assert accountant.get_epsilon(delta) == pytest.approx(epsilon, rel=2e-3)
    assert accountant.get_epsilon(delta) >= epsilon * (1 - 1e-6)


def test_how_much_noise_the_papers_formula_wastes() -> None:
    for epsilon, factor in ((0.1, 4.7), (0.5, 3.6), (1.0, 3.2), (5.0, 2.5), (10.0, 2.1)):
        budget = Budget(epsilon, 0.01)
        assert compute_sigma_by_paper_formula(budget, 100, 1.0) / find_smallest_sigma(
            budget, 100, 1.0
        ) == pytest.approx(factor, abs=0.05)


def test_the_papers_formula_as_printed() -> None:
    # sqrt(8 k (1 + (m - 1) b^2) ln(e + epsilon/delta)) / epsilon with k = 100, m = 51, b = 2, evaluated by mpmath.
    with mpmath.workdps(30):
        expected = float(mpmath.sqrt(8 * 100 * (1 + 50 * 4) * mpmath.log(mpmath.e + 50)) / mpmath.mpf("0.5"))
    assert compute_sigma_by_paper_formula(Budget(0.5, 0.01), 100, math.sqrt(1 + 50 * 4)) == pytest.approx(
        expected, rel=1e-12
    )
    mu = math.sqrt(100 * 201) / expected
    assert compute_epsilon_by_paper_formula(mu, 0.01) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("delta", [5e-324, 1e-300, 1e-12, 0.5, 0.999])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 100.0, 1e4])
def test_the_extremes_stay_on_the_private_side(epsilon: float, delta: float) -> None:
    mu = find_largest_mu(Budget(epsilon, delta))
    assert compute_log_delta(epsilon, mu) <= math.log(delta)
    # Steep enough to matter: a mu one part in a thousand larger breaks the budget.
    assert compute_log_delta(epsilon, mu * 1.001) > math.log(delta)
    assert compute_epsilon(mu, delta) <= epsilon * (1 + 1e-9)


def test_a_noise_that_is_only_close_to_gaussian_costs_delta() -> None:
    mu = find_largest_mu(Budget(1.0, 1e-5))
    assert compute_epsilon(mu, 1e-5, noise_distance=1e-9) > compute_epsilon(mu, 1e-5)
    assert compute_epsilon(mu, 1e-5, noise_distance=1e-5) == math.inf
    epsilon = compute_epsilon(mu, 1e-5, noise_distance=1e-7)
    assert compute_delta(epsilon, mu) + (1 + math.exp(epsilon)) * 1e-7 <= 1e-5
    sigma = find_smallest_sigma(Budget(1.0, 1e-5), 10, 2.0, noise_distance=1e-7)
    assert compute_epsilon(math.sqrt(10) * 2.0 / sigma, 1e-5, noise_distance=1e-7) <= 1.0
