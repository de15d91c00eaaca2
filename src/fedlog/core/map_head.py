"""The head that maximises the posterior, solved exactly, with a certificate.

core/posterior.py explains eta (the head), chi, nu and A. At the maximum chi_y = nu * p_y * eta_y / 2 with
p = softmax(|eta_y|^2 / 4), so each row of the head is parallel to its row of chi and only its length r_y is unknown.
With s_y = |chi_y| / nu, w_y = r_y^2 / 2, t = ln sum_y exp(w_y / 2)

    w_y + ln w_y = ln 2 + 2 ln s_y + 2 t          (w is Wright's omega: Lambert's W in log form, nothing overflows)

and t is the one root of

    G(t) = ln sum_y p_y(t) = 0,     ln p_y = w_y / 2 - t = ln s_y + (ln 2 - ln w_y) / 2.

G is decreasing and convex: each ln p_y has the slope -1 / (1 + w_y), which rises with t, and a log-sum-exp of convex
functions is convex. So Newton started left of the root walks up to it without ever passing it. It starts at the larger
of two numbers, neither of which is right of the root:

    (sum_y s_y)^2          by Jensen, from sum_y s_y = sum_y p_y r_y / 2 and r_y^2 / 4 = t + ln p_y <= t
    ln sum_y exp(s_y^2)    because p_y <= 1 makes r_y >= 2 s_y

The second form of ln p_y has no difference of large numbers in it. So the lengths keep full precision even when
|eta_y|^2 / 4 is in the millions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import wrightomega
from torch import Tensor

from fedlog.core.posterior import Posterior, log_partition
from fedlog.errors import RunError

_EPS = float(np.finfo(np.float64).eps)
_MAX_ITERATIONS = 100
# With a larger tolerance a certificate would mean nothing: float64 cannot resolve softmax(|eta|^2 / 4) any more.
_MAX_TOLERANCE = 1e-3

_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Certificate:
    """How well a head maximises the posterior, computed from the finished head instead of the solver's variables.

    It holds if `relative_gradient` and `log_partition_error` are at most `tolerance`, and `tolerance` is at most 1e-3.
    """

    relative_gradient: float  # |gradient of the log posterior| / |chi|
    log_partition_error: float  # |A(eta) - t|: the solver's t should be A of the head
    iterations: int  # Newton steps on t
    tolerance: float  # what float64 can resolve; it grows with the largest |eta_y|^2

    @property
    def holds(self) -> bool:
        """Whether the head is certified, by the rule in the class's docstring; False if a number is NaN."""
        within = self.relative_gradient <= self.tolerance and self.log_partition_error <= self.tolerance
        return within and self.tolerance <= _MAX_TOLERANCE


@dataclass(frozen=True, eq=False)
class MapHead:
    """The maximum-a-posteriori head, and the certificate of its accuracy.

    `weights` are (n_class, m) in float64, with the bias in column 0.
    """

    weights: Tensor
    certificate: Certificate


def solve_head(posterior: Posterior) -> MapHead:
    """The head that maximises `posterior`, with its certificate; a zero row of chi gives a zero row of the head.

    Noisy statistics can be solved too, even with negative counts, or with sums that no records could have.
    Raises RunError if the certificate does not hold, so every returned head is certified.
    """
    chi: _Array = posterior.chi.detach().cpu().numpy()
    # Dividing by the largest entry first keeps the squares of huge or tiny entries inside float64's range.
    largest = np.abs(chi).max(axis=1, keepdims=True, initial=0.0)
    direction = np.divide(chi, largest, out=np.zeros_like(chi), where=largest > 0)
    length = np.sqrt(np.einsum("ij,ij->i", direction, direction))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_s = np.log(largest[:, 0]) + np.log(length) - np.log(posterior.nu)
        t, r, iterations = _solve_lengths(log_s)
        scale = np.divide(r, length, out=np.zeros_like(r), where=length > 0)
        weights = torch.from_numpy(direction * scale[:, None]).to(posterior.chi.device)
    certificate = _certify(posterior, weights, t, iterations)
    if not certificate.holds:
        error = float(np.maximum(certificate.relative_gradient, certificate.log_partition_error))  # NaN if one is NaN
        raise RunError(
            "the head could not be solved precisely enough, because the features are too large for float64, found: "
            f"error {error:.3g} (must be at most the tolerance), "
            f"tolerance {certificate.tolerance:.3g} (must be at most {_MAX_TOLERANCE:g})",
            hint="clip or normalise the features",
        )
    return MapHead(weights, certificate)


def _solve_lengths(log_s: _Array) -> tuple[float, _Array, int]:
    """Solve for t and the row lengths r (n_class,), given ln s_y in `log_s`; also return the number of Newton steps."""
    log_2s2 = np.log(2.0) + 2 * log_s
    s = np.exp(log_s)
    t = max(float(s.sum() * s.sum()), _logsumexp(s * s))
    for iterations in range(_MAX_ITERATIONS + 1):
        w, log_w = _wright_omega(log_2s2 + 2 * t)
        # The two forms of ln p_y: the first is exact for small w (and for s_y = 0), the second for large w.
        log_p = np.where(w < 1, w / 2 - t, (log_2s2 - log_w) / 2)
        gap = _logsumexp(log_p)
        # G falls to zero from above; a gap below four roundings, or below zero, is rounding alone. NaN stops too.
        if not gap > 4 * _EPS or iterations == _MAX_ITERATIONS:
            break
        t += gap / float((np.exp(log_p - gap) / (1 + w)).sum())
    return t, np.where(w < 1, np.sqrt(2.0) * np.exp(log_w / 2), np.sqrt(2 * w)), iterations


def _wright_omega(c: _Array) -> tuple[_Array, _Array]:
    """The solution w of w + ln w = c, and ln w, which stays exact even if w underflows."""
    w = wrightomega(c)
    return w, np.where(c < 1, c - w, np.log(w))


def _logsumexp(values: _Array) -> float:
    """ln sum exp of `values` (n_class,), at least one finite; scipy's version is slower than a whole Newton step."""
    largest = float(values.max())
    return largest + math.log(float(np.exp(values - largest).sum()))


def _certify(posterior: Posterior, weights: Tensor, t: float, iterations: int) -> Certificate:
    """The certificate of the head `weights` (n_class, m), for which the solver found A(eta) = `t`."""
    # In units of chi's largest entry, so that squares neither overflow nor underflow to zero.
    unit = posterior.chi.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    scale = float(torch.linalg.vector_norm(posterior.chi / unit))
    gradient = float(torch.linalg.vector_norm(posterior.gradient(weights) / unit))
    largest_energy = float(weights.square().sum(dim=1).max()) / 4
    return Certificate(
        relative_gradient=gradient / scale if scale > 0 else gradient,
        log_partition_error=abs(float(log_partition(weights)) - t),
        iterations=iterations,
        tolerance=1e-9 + 10 * _EPS * largest_energy,
    )
