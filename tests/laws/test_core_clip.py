"""Laws of clipping: the promised bound holds to the last bit, short rows are untouched, gradients stay finite."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.core.clip import Clamp, Clip, L2Clip, clip_client_sums
from fedlog.core.keys import Key
from fedlog.core.stats import add_constant
from fedlog.errors import InputError

dtypes = st.sampled_from([torch.float32, torch.float64])


def drawn_rows(seed: int, n: int, width: int, scale: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn((n, width), generator=Key(seed).torch(), dtype=dtype) * scale


def squared_length(row: torch.Tensor) -> Fraction:
    """|row|^2 without any rounding."""
    return sum((Fraction(value) ** 2 for value in row.double().tolist()), Fraction(0))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 20), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), dtypes)
def test_no_row_is_longer_than_the_radius_and_short_rows_stay(
    seed: int, width: int, scale: float, radius: float, dtype: torch.dtype
) -> None:
    rows = drawn_rows(seed, 6, width, scale, dtype)
    for before, after in zip(rows, L2Clip(radius)(rows), strict=True):
        if squared_length(before) <= Fraction(radius) ** 2:
            torch.testing.assert_close(after, before, rtol=1e-6, atol=0)
        else:
            assert squared_length(after) <= Fraction(radius) ** 2
            expected = before.double() * (radius / before.double().norm())
            torch.testing.assert_close(after.double(), expected, rtol=1e-6, atol=0)


def test_a_row_well_inside_the_radius_is_not_touched() -> None:
    rows = drawn_rows(1, 6, 9, 1.0, torch.float32)
    assert torch.equal(L2Clip(100.0)(rows), rows)
    assert torch.equal(clip_client_sums(rows, 100.0), rows)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 20), st.floats(1e-2, 1e2), st.floats(1e-2, 1e2))
def test_one_record_never_exceeds_the_sensitivity(seed: int, width: int, scale: float, bound: float) -> None:
    rows = drawn_rows(seed, 10, width, scale, torch.float64)
    clips: list[Clip] = [Clamp(bound), L2Clip(bound)]
    for clip in clips:
        longest = float(add_constant(clip(rows)).norm(dim=1).max())
        assert longest <= clip.sensitivity(width + 1) * (1 + 1e-14)


def test_sensitivities_are_those_of_the_paper_and_are_reached() -> None:
    # b = 2 and 51 features: sqrt(1 + 50 * 4) = 14.177, the 14.2 of the paper's setting.
    assert Clamp(2.0).sensitivity(51) == math.sqrt(201)
    assert L2Clip(3.0).sensitivity(51) == math.sqrt(10)
    far = torch.full((1, 50), 1e9, dtype=torch.float64)
    for clip in (Clamp(2.0), L2Clip(3.0)):
        assert float(add_constant(clip(far)).norm()) == pytest.approx(clip.sensitivity(51), rel=1e-14)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.floats(1e-2, 1e2), st.floats(1e-2, 1e2), dtypes)
def test_a_message_is_clipped_as_one_vector(seed: int, scale: float, norm: float, dtype: torch.dtype) -> None:
    sums = drawn_rows(seed, 4, 5, scale, dtype)
    clipped = clip_client_sums(sums, norm)
    assert clipped.shape == sums.shape
    assert squared_length(clipped.reshape(-1)) <= Fraction(norm) ** 2 or torch.equal(clipped, sums)
    shortened = sums.double() * min(1.0, norm / float(sums.double().norm()))
    torch.testing.assert_close(clipped.double(), shortened, rtol=1e-6, atol=0)


@pytest.mark.parametrize("clip", [Clamp(2.0), L2Clip(2.0)])
def test_gradients_pass_through_and_are_finite_at_zero(clip: Clip) -> None:
    zero = torch.zeros((1, 3), dtype=torch.float64, requires_grad=True)
    clip(zero).sum().backward()  # type: ignore[no-untyped-call]
    assert zero.grad is not None
    assert torch.equal(zero.grad, torch.ones_like(zero))
    rows = drawn_rows(3, 4, 3, 3.0, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(clip, (rows,))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_that_bounds_nothing_is_refused(bound: float) -> None:
    with pytest.raises(InputError, match="clamp bound must be a finite number above 0"):
        Clamp(bound)
    with pytest.raises(InputError, match="clip radius must be a finite number above 0"):
        L2Clip(bound)
    with pytest.raises(InputError, match="message norm must be a finite number above 0"):
        clip_client_sums(torch.ones(3), bound)
