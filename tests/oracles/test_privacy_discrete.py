"""The discrete sampler and its bounds against exact probabilities, summed term by term."""

from __future__ import annotations

import hashlib
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from fedlog.privacy import discrete
from fedlog.privacy.discrete import (
    STEPS_PER_STD,
    bound_rounding_divergence,
    bound_share_divergence,
    choose_grid,
    count_grid_steps,
    draw_discrete_gaussian,
)


class Stream:
    """Bytes that are the same in every run, so that a test of chance fails always or never."""

    def __init__(self, name: str) -> None:
        self.name, self.calls = name, 0

    def __call__(self, count: int) -> bytes:
        self.calls += 1
        return hashlib.shake_128(f"{self.name}/{self.calls}".encode()).digest(count)


def probabilities(steps: float, reach: int) -> np.ndarray:
    k = np.arange(-reach, reach + 1)
    weights = np.exp(-(k**2) / (2 * steps**2))
    return weights / weights.sum()


def test_words_that_do_not_divide_evenly_are_drawn_anew() -> None:
    # 2^64 = 3 * k + 1: with the word 0 the remainder 0 would come up once more than the others.
    words = iter([0, 1, 2, 4])
    found = discrete._draw_below(
        np.array([3, 3, 3]), lambda count: np.array([next(words) for _ in range(count // 8)], "<u8").tobytes()
    )
    assert found.tolist() == [1, 1, 2]


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_draws_have_the_stated_probabilities(steps: int) -> None:
    draws = draw_discrete_gaussian(200_000, steps, Stream(f"pmf {steps}"))
    reach = 3 * steps
    expected = probabilities(steps, 12 * steps)[9 * steps : 15 * steps + 1]
    counted = np.array([(draws == k).sum() for k in range(-reach, reach + 1)])
    outside = len(draws) - counted.sum()
    observed = np.append(counted, outside)
    wanted = len(draws) * np.append(expected, 1 - expected.sum())
    assert stats.chisquare(observed, wanted).pvalue > 1e-3


@pytest.mark.parametrize("steps", [1000, STEPS_PER_STD, 2**25])
def test_wide_noise_is_gaussian_to_the_eye(steps: int) -> None:
    draws = draw_discrete_gaussian(100_000, steps, Stream(f"wide {steps}")) / steps
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert draws.std() == pytest.approx(1, abs=0.01)


def test_the_system_source_is_used_and_never_repeats() -> None:
    first, second = draw_discrete_gaussian(510, STEPS_PER_STD), draw_discrete_gaussian(510, STEPS_PER_STD)
    assert not np.array_equal(first, second)
    assert draw_discrete_gaussian(0, 5).shape == (0,)


@pytest.mark.parametrize("steps", [4, 6])
def test_the_rounding_bound_covers_the_true_divergence(steps: int) -> None:
    # KL(discrete || rounded), summed in high precision: a float sum would see only its own rounding.
    with mpmath.workdps(40):
        s = mpmath.mpf(steps)
        normaliser = mpmath.nsum(lambda k: mpmath.exp(-(k**2) / (2 * s**2)), [-mpmath.inf, mpmath.inf])
        total = mpmath.mpf(0)
        for k in range(-14 * steps, 14 * steps + 1):
            mass = mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * s**2)) / normaliser
            upper = abs(k) - mpmath.mpf(1) / 2
            rounded = (mpmath.erfc(upper / s / mpmath.sqrt(2)) - mpmath.erfc((upper + 1) / s / mpmath.sqrt(2))) / 2
            total += mass * mpmath.log(mass / rounded)
    assert 0.3 * bound_rounding_divergence(steps) < float(total) < bound_rounding_divergence(steps)


@pytest.mark.parametrize(("steps", "shares"), [(0.5, 2), (0.6, 4), (0.8, 3), (1.0, 5)])
def test_the_correction_covers_sums_of_shares(steps: float, shares: int) -> None:
    with mpmath.workdps(50):

        def masses(variance: float) -> list[mpmath.mpf]:
            raw = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(variance))) for k in range(-40, 41)]
            normaliser = mpmath.fsum(raw)
            return [weight / normaliser for weight in raw]

        one = masses(steps**2)
        summed = one
        for _ in range(shares - 1):
            # Full convolution, cut back to the same window: what is cut weighs less than exp(-300).
            size = len(summed)
            summed = [
                mpmath.fsum(summed[j] * one[i - j + 40] for j in range(size) if 0 <= i - j + 40 < 81)
                for i in range(size)
            ]
        single = masses(shares * steps**2)
        worst = max(abs(mpmath.log(summed[k] / single[k])) for k in range(40 - 6, 40 + 7))
    assert 0 < float(worst) <= bound_share_divergence(steps, shares)


def test_the_grid_is_fine_a_power_of_two_and_holds_one() -> None:
    for std in (0.3, 1.0, 31.469, 447.0, 1e4):
        grid = choose_grid(std)
        assert math.frexp(grid)[0] == 0.5
        assert STEPS_PER_STD <= std / grid < 2 * STEPS_PER_STD
        assert (1 / grid).is_integer()
        assert count_grid_steps(std, grid) * grid >= std
    assert bound_share_divergence(STEPS_PER_STD, 1000) == 0.0
