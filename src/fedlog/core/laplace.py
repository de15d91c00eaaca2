"""The Laplace approximation of the posterior of FedLog's head, in closed form.

`core/posterior.py` explains eta (the head), phi and nu (here the posterior's). With p = softmax(|eta_y|^2 / 4), the
negative Hessian of the log posterior is

    H = nu * (blockdiag_y(p_y * (I / 2 + eta_y eta_y^T / 4)) - g g^T),      g_y = p_y eta_y / 2.

Each block is a multiple of the identity plus a matrix of rank one, and g g^T has rank one too. So the formula of
Sherman and Morrison, used twice, gives the inverse of H, and with it the covariance of the logits z_y = eta_y . phi:

    nu * cov(z_y, z_x) = [y = x] * (2 / p_y) * (|phi|^2 - z_y^2 / (2 h_y)) + a_y a_x / s,
    h_y = 1 + |eta_y|^2 / 2,     a_y = z_y / h_y,     s = sum_y p_y / h_y.

p_y may be too small for float64 (a class without records), so variances are kept as logarithms. The code uses these
formulas only, and never makes H, which has a row for each entry of the head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.core.stats import add_constant
from fedlog.errors import InputError


@dataclass(frozen=True, eq=False)
class LaplaceHead:
    """FedLog's head (n_class, m), and the number of records `nu` of its posterior, the prior's included."""

    weights: Tensor
    nu: float

    def __post_init__(self) -> None:
        if not self.nu > 0:
            raise InputError(f"the posterior of a head needs a number of records above 0, found: {self.nu}")
        object.__setattr__(self, "weights", self.weights.detach().to(torch.float64))

    def logits(self, features: Tensor) -> Tensor:
        """The mean logits, (n, n_class), of `features` (n, m - 1), without the constant."""
        return add_constant(features.to(torch.float64)) @ self.weights.mT

    def log_variances(self, features: Tensor) -> Tensor:
        """The logarithm of the variance of each record's logits, (n, n_class)."""
        own, shared = self._compute_covariance_terms(features)
        return torch.logaddexp(own, 2 * shared.abs().log())

    def probabilities(self, features: Tensor) -> Tensor:
        """Predictive probabilities, (n, n_class): each logit is damped according to its variance (MacKay 1992)."""
        # The factor is 1 / sqrt(1 + pi v / 8). A variance v beyond float64 makes it 0: such a logit says nothing.
        damping = torch.nn.functional.softplus(math.log(math.pi / 8) + self.log_variances(features))
        return torch.softmax(self.logits(features) * torch.exp(-damping / 2), dim=1)

    def _compute_covariance_terms(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of cov(z_y, z_x), (n, n_class) each: ln of the first term at y = x, and a_y / sqrt(nu s)."""
        phi, squares = add_constant(features.to(torch.float64)), self.weights.square().sum(1)
        z, h = phi @ self.weights.mT, 1 + squares / 2
        log_p = torch.log_softmax(squares / 4, dim=0)
        left = phi.square().sum(1, keepdim=True) - z.square() / (2 * h)
        # |phi|^2 >= z^2 / r^2 > z^2 / (2 h), so only rounding can bring `left` below zero.
        own = math.log(2 / self.nu) - log_p + left.clamp_min(torch.finfo(torch.float64).tiny).log()
        log_s = torch.logsumexp(log_p - h.log(), dim=0)
        return own, (z / h) * torch.exp(-(log_s + math.log(self.nu)) / 2)
