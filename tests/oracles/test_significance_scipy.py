"""The statistics against scipy, and against counting every pattern of signs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, sem, wilcoxon

from fedlog.experiments.tables.significance import (
    Alternative,
    Mean,
    compute_signed_rank_p_value,
    correct_by_holm,
    estimate_shift,
)

slow_law = settings(deadline=None, max_examples=25)


@slow_law
@given(st.lists(st.floats(-5, 5).filter(lambda x: abs(x) > 1e-3), min_size=1, max_size=10, unique_by=abs))
def test_without_ties_the_p_value_is_scipys_exact_one(differences: list[float]) -> None:
    for side in Alternative:
        expected = wilcoxon(differences, alternative=side.value, method="exact").pvalue
        assert compute_signed_rank_p_value(differences, side) == pytest.approx(expected, abs=1e-12)


@slow_law
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_with_ties_and_zeros_the_p_value_is_the_share_of_sign_patterns(differences: list[int]) -> None:
    kept = np.array([value for value in differences if value], dtype=float)
    if not len(kept):
        assert compute_signed_rank_p_value(differences, Alternative.GREATER) == 1
        return
    ranks = rankdata(np.abs(kept))
    observed = ranks[kept > 0].sum()
    sums = [ranks[np.array(signs)].sum() for signs in product([False, True], repeat=len(kept))]
    assert compute_signed_rank_p_value(differences, Alternative.GREATER) == pytest.approx(
        np.mean(np.array(sums) >= observed - 1e-9)
    )


@slow_law
@given(st.lists(st.floats(-5, 5), min_size=6, max_size=9, unique=True))
def test_the_interval_holds_the_shifts_that_the_test_does_not_reject(differences: list[float]) -> None:
    found = estimate_shift(differences)
    assert found.low is not None
    width = max(1.0, found.high - found.low)
    for outside, side in (
        (found.low - 1e-6 * width, Alternative.GREATER),
        (found.high + 1e-6 * width, Alternative.LESS),
    ):
        assert compute_signed_rank_p_value([value - outside for value in differences], side) <= 0.025 + 1e-12
    inside = [value - found.estimate for value in differences]
    assert min(compute_signed_rank_p_value(inside, side) for side in Alternative) > 0.025


def test_the_estimate_of_a_shift_by_hand() -> None:
    # Walsh means of 1, 2, 6: 1, 1.5, 3.5, 2, 4, 6; their median is (2 + 3.5) / 2.
    assert estimate_shift([1.0, 2.0, 6.0]).estimate == 2.75


@slow_law
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=10))
def test_the_standard_error_is_scipys(values: list[float]) -> None:
    assert Mean.from_values(values).error == pytest.approx(float(sem(values)), rel=1e-9, abs=1e-9)


def test_holms_correction_by_hand() -> None:
    # 4 x 0.01; 3 x 0.02; 2 x 0.03, as much as before; 1 x 0.04 is less, and stays at 0.06.
    found = correct_by_holm({"d": 0.04, "a": 0.01, "c": 0.03, "b": 0.02})
    assert found == pytest.approx({"a": 0.04, "b": 0.06, "c": 0.06, "d": 0.06})
