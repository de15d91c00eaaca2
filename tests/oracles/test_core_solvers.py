"""The exact head against two independent solvers: L-BFGS on the kernel, and 50-digit arithmetic."""

from __future__ import annotations

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedlog.core.keys import Key
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Posterior, Prior
from fedlog.core.stats import Statistics

Array = npt.NDArray[np.float64]


def problem(seed: int, n_class: int, width: int, n: int, norm: float, used: int, chi_scale: float) -> Posterior:
    """The posterior of `n` records in `used` of the classes, feature norms about `norm`, and a drawn prior chi."""
    generator = Key(seed).numpy()
    labels = generator.integers(0, used, n)
    centres = generator.standard_normal((n_class, width - 1))
    features = centres[labels] + 0.3 * generator.standard_normal((n, width - 1))
    features *= norm / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    statistics = Statistics.from_records(torch.from_numpy(features), torch.from_numpy(labels), n_class)
    chi = None if chi_scale == 0 else torch.from_numpy(chi_scale * generator.standard_normal((n_class, width)))
    return Prior(chi, nu=float(generator.uniform(0.2, 3))).posterior(statistics)


def by_lbfgs(posterior: Posterior) -> Array:
    """The head (n_class, m) found by L-BFGS from zero, with numpy formulas of its own."""
    chi = posterior.chi.numpy() / posterior.nu

    def loss(flat: Array) -> tuple[float, Array]:
        eta = flat.reshape(chi.shape)
        energies = (eta**2).sum(axis=1) / 4
        shares = np.exp(energies - energies.max())
        value = energies.max() + np.log(shares.sum()) - (eta * chi).sum()
        return float(value), ((shares / shares.sum())[:, None] * eta / 2 - chi).ravel()

    flat = np.zeros(chi.size)
    for _ in range(3):  # a fresh memory helps where the first run stalls on rounding
        options = {"maxiter": 20000, "maxfun": 40000, "ftol": 0.0, "gtol": 1e-11, "maxcor": 30}
        flat = minimize(loss, flat, jac=True, method="L-BFGS-B", options=options).x
    return np.asarray(flat, dtype=np.float64).reshape(chi.shape)


def assert_agrees_with_lbfgs(posterior: Posterior) -> None:
    exact, iterative = solve_head(posterior).weights, torch.from_numpy(by_lbfgs(posterior))
    best, found = float(posterior.log_kernel(exact)), float(posterior.log_kernel(iterative))
    assert found <= best + 1e-12 * abs(best) + 1e-12
    assert float((exact - iterative).norm()) <= 1e-4 * max(float(exact.norm()), 1e-3)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32),
    st.integers(1, 12),
    st.integers(2, 20),
    st.integers(1, 200),
    st.floats(1e-3, 50),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.0, 1.0]),
)
@example(1, 1, 4, 20, 3.0, 1, 0.0).via("one class")
@example(1, 5, 4, 1, 3.0, 5, 0.0).via("one record")
@example(1, 10, 51, 100, 50.0, 2, 0.0).via("eight empty classes")
def test_head_matches_lbfgs(
    seed: int, n_class: int, width: int, n: int, norm: float, used: int, chi_scale: float
) -> None:
    assert_agrees_with_lbfgs(problem(seed, n_class, width, n, norm, min(used, n_class), chi_scale))


@pytest.mark.parametrize("norm", [1e-3, 1.0, 7.0])
def test_head_matches_lbfgs_with_a_thousand_classes(norm: float) -> None:
    assert_agrees_with_lbfgs(problem(3, 1000, 6, 5000, norm, 900, 0.0))


def by_mpmath(posterior: Posterior) -> tuple[list[list[mpmath.mpf]], mpmath.mpf]:
    """The head in 50-digit arithmetic, and ln Z; Lambert's W and bisection, then proved stationary by its gradient."""
    nu = mpmath.mpf(posterior.nu)
    chi = [[mpmath.mpf(value) for value in row] for row in posterior.chi.tolist()]
    lengths = [mpmath.sqrt(mpmath.fsum(v * v for v in row)) for row in chi]

    def radius_squared(length: mpmath.mpf, t: mpmath.mpf) -> mpmath.mpf:
        return 2 * mpmath.lambertw(2 * (length / nu * mpmath.exp(t)) ** 2).real

    def excess(t: mpmath.mpf) -> mpmath.mpf:
        return mpmath.fsum(mpmath.exp(radius_squared(length, t) / 4 - t) for length in lengths) - 1

    low, high = mpmath.mpf(0), mpmath.mpf(1)
    while excess(high) > 0:
        low, high = high, 2 * high
    root = mpmath.findroot(excess, (low, high), solver="anderson", tol=mpmath.mpf(10) ** -80, verify=False)
    scales = [mpmath.sqrt(radius_squared(length, root)) / length if length else length for length in lengths]
    head = [[v * scale for v in row] for row, scale in zip(chi, scales, strict=True)]

    energies = [mpmath.fsum(v * v for v in row) / 4 for row in head]
    partition = mpmath.fsum(mpmath.exp(e) for e in energies)
    for row, own, energy in zip(head, chi, energies, strict=True):
        for value, target in zip(row, own, strict=True):
            gradient = target - nu * mpmath.exp(energy) / partition * value / 2
            assert abs(gradient) <= mpmath.mpf(10) ** -25 * max(lengths)
    return head, root


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 60),
    st.floats(-3, 3),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.0, 1.0, 1e-6]),
)
@example(1, 1, 3, 20, 3.0, 1, 0.0).via("one class, norm 1000")
@example(1, 4, 3, 1, 3.0, 4, 0.0).via("one record, norm 1000")
@example(1, 4, 3, 1, -3.0, 4, 0.0).via("one record, norm 0.001")
@example(2, 6, 3, 50, 3.0, 2, 0.0).via("four empty classes, norm 1000")
def test_head_matches_50_digits_at_any_norm(
    seed: int, n_class: int, width: int, n: int, log_norm: float, used: int, chi_scale: float
) -> None:
    posterior = problem(seed, n_class, width, n, 10**log_norm, min(used, n_class), chi_scale)
    weights = solve_head(posterior).weights
    with mpmath.workdps(50):
        head, log_z = by_mpmath(posterior)
        exact = torch.tensor([[float(v) for v in row] for row in head], dtype=torch.float64)
    # ln Z is known to a few roundings of itself, and a row moves with it by 1 / (1 + |eta_y|^2 / 2).
    slack = 1 + float(log_z) / (1 + exact.square().sum(dim=1, keepdim=True) / 2)
    error = (weights - exact).abs()
    assert bool((error <= 50 * torch.finfo(torch.float64).eps * slack * exact.abs()).all()), float(error.max())
