"""Laws of budgets and calibration."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.errors import InputError
from fedlog.privacy.calibration import (
    compute_delta_used_by_grid,
    compute_epsilon,
    compute_log_delta,
    compute_sigma_by_paper_formula,
    find_smallest_sigma,
)
from fedlog.privacy.guarantee import PAPER_CAVEAT, Budget, Guarantee, Trust, Unit, warn_of_large_delta

epsilons = st.floats(1e-3, 100.0)
deltas = st.floats(1e-300, 0.9)
releases = st.integers(1, 10_000)
sensitivities = st.floats(1e-3, 1e3)


@settings(deadline=None, max_examples=100)
@given(epsilons, deltas, releases, sensitivities)
def test_sigma_and_epsilon_are_inverses(epsilon: float, delta: float, k: int, sensitivity: float) -> None:
    sigma = find_smallest_sigma(Budget(epsilon, delta), k, sensitivity)
    spent = compute_epsilon(math.sqrt(k) * sensitivity / sigma, delta)
    assert spent <= epsilon
    # Where delta is nearly flat in epsilon, the last digits of sigma carry few digits of epsilon.
    assert spent == pytest.approx(epsilon, rel=1e-6, abs=1e-6)


@settings(deadline=None, max_examples=100)
@given(epsilons, deltas, releases, sensitivities, st.floats(1.01, 10.0))
def test_sigma_scales_with_sensitivity_and_with_the_root_of_releases(
    epsilon: float, delta: float, k: int, sensitivity: float, factor: float
) -> None:
    budget = Budget(epsilon, delta)
    sigma = find_smallest_sigma(budget, k, sensitivity)
    assert find_smallest_sigma(budget, k, sensitivity * factor) == pytest.approx(sigma * factor, rel=1e-9)
    assert find_smallest_sigma(budget, 4 * k, sensitivity) == pytest.approx(2 * sigma, rel=1e-9)
    assert find_smallest_sigma(Budget(epsilon * factor, delta), k, sensitivity) < sigma


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-3, 10.0), st.floats(1e-300, 0.01), releases, sensitivities)
def test_the_papers_formula_adds_more_noise_than_needed_where_epsilon_means_something(
    epsilon: float, delta: float, k: int, sensitivity: float
) -> None:
    budget = Budget(epsilon, delta)
    assert find_smallest_sigma(budget, k, sensitivity) < compute_sigma_by_paper_formula(budget, k, sensitivity)


@given(st.floats(0.0, 5.0), st.floats(1e-6, 1e-3))
def test_noise_at_a_distance_from_the_analysed_one_costs_as_much_as_it_can(epsilon: float, distance: float) -> None:
    # An event of the probabilities e^epsilon q and q has no delta; move both by the distance, apart from each other.
    q = 0.5 * math.exp(-epsilon)
    delta = (math.exp(epsilon) * q + distance) - math.exp(epsilon) * (q - distance)
    assert compute_delta_used_by_grid(epsilon, distance) == pytest.approx(delta, rel=1e-6)


def test_the_papers_formula_is_too_small_for_a_huge_epsilon() -> None:
    # Its theorem says "for all epsilon"; here the exact noise is larger than the formula's.
    budget = Budget(84.0, 0.5)
    assert find_smallest_sigma(budget, 1, 1.0) > compute_sigma_by_paper_formula(budget, 1, 1.0)


@settings(deadline=None, max_examples=100)
@given(st.floats(0.0, 50.0), st.floats(1e-3, 30.0), st.floats(1.001, 3.0))
def test_delta_falls_with_epsilon_and_rises_with_mu(epsilon: float, mu: float, factor: float) -> None:
    assert (
        compute_log_delta(epsilon * factor + 1e-3, mu) < compute_log_delta(epsilon, mu)
        or compute_log_delta(epsilon, mu) > -1e-9
    )
    assert (
        compute_log_delta(epsilon, mu * factor) > compute_log_delta(epsilon, mu)
        or compute_log_delta(epsilon, mu) > -1e-9
    )


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 0.1), (-1.0, 0.1), (math.nan, 0.1), (math.inf, 0.1), (1.0, 0.0), (1.0, 1.0), (1.0, -0.1), (1.0, math.nan)],
)
def test_invalid_budgets_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InputError):
        Budget(epsilon, delta)


@pytest.mark.parametrize(("k", "sensitivity"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, math.inf), (1, math.nan)])
def test_invalid_plans_are_refused(k: int, sensitivity: float) -> None:
    for calibrate in (find_smallest_sigma, compute_sigma_by_paper_formula):
        with pytest.raises(InputError):
            calibrate(Budget(1.0, 1e-5), k, sensitivity)


@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.CLIENT])
@pytest.mark.parametrize("trust", list(Trust))
def test_an_epsilon_is_printed_with_everything_that_gives_it_a_meaning(unit: Unit, trust: Trust) -> None:
    guarantee = Guarantee(0.5, 1e-5, unit, trust, releases=40)
    text = str(guarantee)
    for part in ("epsilon 0.5", "delta 1e-05", str(unit), guarantee.neighbours, "releases: 40", guarantee.trusted):
        assert part in text


def test_the_papers_mode_prints_no_epsilon() -> None:
    guarantee = Guarantee(None, 0.01, Unit.PAPER, Trust.CENTRAL, releases=100, nominal_epsilon=0.5)
    assert str(guarantee).startswith(PAPER_CAVEAT)
    assert guarantee.as_json()["epsilon"] is None
    with pytest.raises(InputError):
        Guarantee(0.5, 0.01, Unit.PAPER, Trust.CENTRAL, releases=100)


def test_a_delta_above_one_over_the_number_protected_is_warned_about() -> None:
    assert warn_of_large_delta(0.01, 60, Unit.RECORD) is None
    assert "1/600" in str(warn_of_large_delta(0.01, 600, Unit.RECORD))
    assert "clients" in str(warn_of_large_delta(0.03, 50, Unit.CLIENT))
