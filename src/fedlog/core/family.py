"""The exponential family of one record: features and label together, a Gaussian around each class.

    p(phi, y | eta) = pi^(-m/2) * exp(<eta, T(phi, y)> - |phi|^2 - A(eta))
    T(phi, y)       = the (n_class, m) matrix whose row y is phi, all other rows zero
    A(eta)          = ln sum_y exp(|eta_y|^2 / 4)

`phi` has m entries and its first is the constant 1; `eta` is the head, (n_class, m), one row per class.
Given phi, the label follows softmax(phi @ eta.T), so the head is an ordinary linear layer with a bias in column 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_partition(eta: Tensor) -> Tensor:
    """A(eta) = ln sum_y exp(|eta_y|^2 / 4), a scalar; `eta` is (n_class, m). Overflows only where |eta_y|^2 does."""
    return torch.logsumexp(_energies(eta), dim=-1)


def log_partition_gradient(eta: Tensor) -> Tensor:
    """The gradient of A, (n_class, m): row y is p_y * eta_y / 2 with p = softmax(|eta_y|^2 / 4); also the mean of T."""
    return torch.softmax(_energies(eta), dim=-1).unsqueeze(-1) * eta / 2


def _energies(eta: Tensor) -> Tensor:
    """|eta_y|^2 / 4 for each class: (n_class, m) -> (n_class,)."""
    return eta.square().sum(dim=-1) / 4
