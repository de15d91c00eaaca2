"""The log-partition and the posterior kernel against numerical integration and automatic differentiation."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import dblquad

from fedlog.core.keys import Key
from fedlog.core.posterior import Posterior, log_partition, log_partition_gradient


@settings(deadline=None, max_examples=8)
@given(st.integers(1, 4), st.floats(0, 6), st.integers(0, 2**32))
def test_log_partition_matches_integration_over_two_features(n_class: int, scale: float, seed: int) -> None:
    """sum_y of the integral over phi in R^2 of exp(<eta_y, phi> - |phi|^2) / pi, the definition of exp A."""
    eta = Key(seed).numpy().standard_normal((n_class, 2)) * scale
    total = 0.0
    for a, b in eta:
        # The integrand is a Gaussian bump of width 0.7 around (a, b) / 2: 8 to each side leaves out less than 1e-27.
        value, _ = dblquad(
            lambda y, x, a=a, b=b: math.exp(a * x + b * y - x * x - y * y) / math.pi,
            a / 2 - 8,
            a / 2 + 8,
            b / 2 - 8,
            b / 2 + 8,
            epsabs=0,
            epsrel=1e-9,
        )
        total += value
    assert float(log_partition(torch.from_numpy(eta))) == pytest.approx(math.log(total), abs=1e-8)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(1, 6), st.floats(1e-3, 1e3), st.integers(0, 2**32))
def test_log_partition_and_gradient_match_mpmath_at_any_norm(n: int, width: int, scale: float, seed: int) -> None:
    eta = Key(seed).numpy().standard_normal((n, width)) * scale
    with mpmath.workdps(50):
        energies = [mpmath.fsum(mpmath.mpf(v) ** 2 for v in row) / 4 for row in eta.tolist()]
        largest = max(energies)
        exponentials = [mpmath.exp(e - largest) for e in energies]
        value = float(largest + mpmath.log(mpmath.fsum(exponentials)))
        shares = np.array([float(e / mpmath.fsum(exponentials)) for e in exponentials])
    tensor = torch.from_numpy(eta)
    assert float(log_partition(tensor)) == pytest.approx(value, rel=1e-14, abs=0)
    gradient = log_partition_gradient(tensor).numpy()
    relative = 1e-13 + 1e-14 * float(largest)
    np.testing.assert_allclose(gradient, shares[:, None] * eta / 2, rtol=relative, atol=1e-300)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.integers(1, 6), st.floats(1e-2, 30), st.integers(0, 2**32))
def test_gradients_match_automatic_differentiation(n: int, width: int, scale: float, seed: int) -> None:
    generator = Key(seed).torch()
    eta = (torch.randn((n, width), generator=generator, dtype=torch.float64) * scale).requires_grad_()
    posterior = Posterior(torch.randn((n, width), generator=generator, dtype=torch.float64), 7.0)
    (of_a,) = torch.autograd.grad(log_partition(eta), eta)
    (of_kernel,) = torch.autograd.grad(posterior.log_kernel(eta), eta)
    torch.testing.assert_close(log_partition_gradient(eta.detach()), of_a, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(posterior.gradient(eta.detach()), of_kernel, rtol=1e-10, atol=1e-11)
