"""Laws of the posterior and its head: every head is certified, and what cannot be certified is refused."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.core import map_head
from fedlog.core.keys import Key
from fedlog.core.map_head import Certificate, solve_head
from fedlog.core.posterior import Posterior, Prior
from fedlog.core.stats import Statistics
from fedlog.errors import InputError, RunError


@st.composite
def posteriors(draw: st.DrawFn) -> Posterior:
    """Any chi at all: rows of very different lengths, zero rows, negative counts, as privacy noise leaves them."""
    n_class, width = draw(st.integers(1, 30)), draw(st.integers(1, 20))
    generator = Key(draw(st.integers(0, 2**32))).torch()
    chi = torch.randn((n_class, width), generator=generator, dtype=torch.float64)
    exponents = torch.rand((n_class, 1), generator=generator, dtype=torch.float64)
    low, high = draw(st.sampled_from([(-3.0, 3.0), (-12.0, 3.0), (0.0, 1.0), (2.0, 3.5)]))
    chi *= 10 ** (low + (high - low) * exponents)
    chi[torch.rand(n_class, generator=generator) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = 0
    nu = 10 ** draw(st.floats(-0.3, 4))
    return Posterior(chi * nu if draw(st.booleans()) else chi, nu)


@settings(deadline=None, max_examples=150)
@given(posteriors())
def test_every_head_holds_its_certificate_and_is_stationary(posterior: Posterior) -> None:
    head = solve_head(posterior)
    certificate = head.certificate
    assert certificate.holds
    assert certificate.iterations <= 15
    # The promise itself, spelled out once more and away from the solver.
    energy = float((head.weights**2).sum(dim=1).max()) / 4
    bound = 1e-9 + 10 * torch.finfo(torch.float64).eps * energy
    shares = torch.softmax((head.weights**2).sum(dim=1) / 4, dim=0)
    gradient = posterior.chi - posterior.nu * shares[:, None] * head.weights / 2
    assert float(gradient.norm()) <= bound * float(posterior.chi.norm())
    assert max(certificate.relative_gradient, certificate.log_partition_error) <= bound
    assert certificate.tolerance == pytest.approx(bound)


@settings(deadline=None, max_examples=40)
@given(posteriors(), st.integers(0, 2**32))
def test_no_other_head_is_more_probable(posterior: Posterior, seed: int) -> None:
    weights = solve_head(posterior).weights
    best = float(posterior.log_kernel(weights))
    generator = Key(seed).torch()
    for size in (1e-3, 1.0, 10.0):
        other = weights + size * torch.randn(weights.shape, generator=generator, dtype=torch.float64)
        assert float(posterior.log_kernel(other)) <= best + 1e-12 * abs(best)


@settings(deadline=None, max_examples=40)
@given(posteriors(), st.integers(0, 2**32))
def test_permuting_the_classes_permutes_the_head(posterior: Posterior, seed: int) -> None:
    order = torch.randperm(len(posterior.chi), generator=Key(seed).torch())
    permuted = solve_head(Posterior(posterior.chi[order], posterior.nu)).weights
    energy = float((permuted**2).sum(dim=1).max())
    torch.testing.assert_close(permuted, solve_head(posterior).weights[order], rtol=1e-11 + 1e-14 * energy, atol=1e-290)


def test_zero_statistics_give_a_zero_head() -> None:
    head = solve_head(Prior().posterior(Statistics.zeros(4, 3)))
    assert torch.equal(head.weights, torch.zeros((4, 3), dtype=torch.float64))


def test_a_row_too_small_to_square_keeps_its_length() -> None:
    # For a vanishing row r * exp(r^2 / 4) = 2 * s * Z is r = 2 * s * Z, though r^2 itself underflows to zero.
    chi = torch.tensor([[3.0, 4.0], [0.0, 1e-170]], dtype=torch.float64)
    weights = solve_head(Posterior(chi, 5.0)).weights
    expected = 2 * (1e-170 / 5) * (math.exp(float(weights[0].square().sum()) / 4) + 1)
    assert float(weights[1, 1]) / expected == pytest.approx(1, rel=1e-12)


def test_a_wrong_solution_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = map_head._solve_lengths

    def slightly_off(log_s):  # type: ignore[no-untyped-def]
        t, r, iterations = right(log_s)
        return t, r * (1 + 1e-7), iterations

    monkeypatch.setattr(map_head, "_solve_lengths", slightly_off)
    with pytest.raises(RunError, match="could not be solved precisely enough, because the features are too large"):
        solve_head(Posterior(torch.tensor([[3.0, 1.0], [2.0, -1.0]]), 6.0))


@pytest.mark.parametrize("size", [1e8, 1e160, 1e308])
def test_features_beyond_float64_are_refused(size: float) -> None:
    with pytest.raises(RunError, match="could not be solved precisely enough"):
        solve_head(Posterior(torch.tensor([[1.0, size], [1.0, -size]], dtype=torch.float64), 3.0))


@pytest.mark.parametrize("field", ["relative_gradient", "log_partition_error"])
@pytest.mark.parametrize("value", [2e-9, math.nan, math.inf])
def test_either_residual_alone_breaks_the_certificate(field: str, value: float) -> None:
    good = Certificate(relative_gradient=1e-12, log_partition_error=1e-12, iterations=3, tolerance=1e-9)
    assert good.holds
    assert not dataclasses.replace(good, **{field: value}).holds  # type: ignore[arg-type]


def test_the_count_column_gives_the_strength_unless_a_total_is_given() -> None:
    statistics = Statistics(torch.tensor([[2.0, 1.0], [-0.5, 3.0]]))
    chi = torch.tensor([[0.5, 0.0], [0.25, 1.0]])
    posterior = Prior(chi, nu=0.75).posterior(statistics)
    assert posterior.nu == 2.25
    assert torch.equal(posterior.chi, statistics.sums + chi)


def test_a_posterior_carried_over_in_full_equals_seeing_all_records_at_once() -> None:
    generator = Key(5).torch()
    parts = [
        Statistics.from_records(torch.randn((7, 3), generator=generator), torch.arange(7) % 4, 4),
        Statistics.from_records(torch.randn((9, 3), generator=generator), torch.arange(9) % 4, 4),
    ]
    at_once = Prior().posterior(parts[0] + parts[1])
    first = Prior().posterior(parts[0])
    in_turn = Prior(first.chi, first.nu).posterior(parts[1])
    assert in_turn.nu == at_once.nu
    torch.testing.assert_close(in_turn.chi, at_once.chi, rtol=1e-14, atol=1e-14)


def test_priors_and_posteriors_that_hold_nothing_are_refused() -> None:
    empty = Statistics.zeros(2, 2)
    for nu in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="nu must be a finite number, 0 or more"):
            Prior(nu=nu)
    with pytest.raises(InputError, match="chi must be finite"):
        Prior(torch.tensor([[math.nan]]))
    with pytest.raises(InputError, match="chi must be finite"):
        Posterior(torch.tensor([[math.inf]]), 1.0)
    with pytest.raises(InputError, match="above 0, found: 0"):
        Prior(nu=0.0).posterior(empty)
    with pytest.raises(InputError, match="above 0, found: -2"):
        Prior().posterior(Statistics(torch.tensor([[-3.0, 0.0]])))
    with pytest.raises(InputError, match=r"chi \(1, 2\), statistics \(2, 2\)"):
        Prior(torch.zeros((1, 2))).posterior(empty)
