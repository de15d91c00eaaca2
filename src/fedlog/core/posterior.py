"""FedLog's model: the exponential family of one record, the conjugate prior of its parameters, and their posterior.

Features and label together are a Gaussian around each class:

    p(phi, y | eta) = pi^(-m/2) * exp(<eta, T(phi, y)> - |phi|^2 - A(eta))
    T(phi, y)       = the (n_class, m) matrix whose row y is phi, all other rows zero
    A(eta)          = ln sum_y exp(|eta_y|^2 / 4)

`phi` has m entries and its first is the constant 1; `eta` is the head, (n_class, m), one row per class.
Given phi, the label follows softmax(phi @ eta.T), so the head is an ordinary linear layer with a bias in column 0.
Prior and posterior are both a matrix `chi` and a strength `nu`:

ln p(eta) = <eta, chi> - nu * A(eta) + constant          prior
ln p(eta | records) = <eta, chi + Phi> - (nu + n) * A(eta) + constant          posterior
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.core.stats import Statistics
from fedlog.errors import InputError


def log_partition(eta: Tensor) -> Tensor:
    """A(eta) = ln sum_y exp(|eta_y|^2 / 4), a scalar; `eta` is (n_class, m). Overflows only if |eta_y|^2 does."""
    return torch.logsumexp(_compute_energies(eta), dim=-1)


def log_partition_gradient(eta: Tensor) -> Tensor:
    """The gradient of A, (n_class, m): row y is p_y * eta_y / 2 with p = softmax(|eta_y|^2 / 4).

    As in every exponential family, this is also the mean of T(phi, y) under p(phi, y | eta).
    """
    return torch.softmax(_compute_energies(eta), dim=-1).unsqueeze(-1) * eta / 2


def _compute_energies(eta: Tensor) -> Tensor:
    """The energy |eta_y|^2 / 4 of each class: (n_class, m) -> (n_class,)."""
    return eta.square().sum(dim=-1) / 4


@dataclass(frozen=True, eq=False)
class Prior:
    """The belief about the head before any record: `nu` imagined records with summed statistics `chi`.

    `chi` is (n_class, m) or None for zeros. With `nu` = 0 the prior is not a density, and the head is that of maximum
    likelihood; `posterior` then needs records.
    """

    chi: Tensor | None = None
    nu: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.nu) and self.nu >= 0):
            raise InputError(f"the prior's nu must be a finite number, 0 or more, found: {self.nu}")
        if self.chi is not None and not bool(torch.isfinite(self.chi).all()):
            raise InputError("the prior's chi must be finite, found: NaN or infinity")

    def posterior(self, statistics: Statistics) -> Posterior:
        """The posterior, given the records that are summed in `statistics`.

        Raises InputError if chi has another shape, or if nu plus the number of records is not above 0: the posterior
        then has no maximum.
        """
        chi = torch.zeros_like(statistics.sums) if self.chi is None else self.chi.to(statistics.sums)
        if chi.shape != statistics.sums.shape:
            shapes = f"{tuple(chi.shape)}, statistics {tuple(statistics.sums.shape)}"
            raise InputError(f"the prior's chi must have the shape of the statistics, found: chi {shapes}")
        return Posterior(chi + statistics.sums, self.nu + statistics.total)


@dataclass(frozen=True, eq=False)
class Posterior:
    """The belief about the head after the records: `chi` (n_class, m) float64 and `nu` > 0, prior included."""

    chi: Tensor
    nu: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.nu) and self.nu > 0):
            raise InputError(
                f"the posterior's strength nu + n must be a finite number above 0, found: {self.nu}",
                hint="there are no records, or noise is larger than the counts: keep the old head or raise nu",
            )
        if not bool(torch.isfinite(self.chi).all()):
            raise InputError(
                "the posterior's chi must be finite, found: NaN or infinity",
                hint="chi is the prior's chi plus the summed features: clip features, or lower the learning rate",
            )
        object.__setattr__(self, "chi", self.chi.detach().to(torch.float64))

    def log_kernel(self, eta: Tensor) -> Tensor:
        """The log density up to a constant, <eta, chi> - nu * A(eta); it is concave in `eta` (n_class, m) float64."""
        return (eta * self.chi).sum() - self.nu * log_partition(eta)

    def gradient(self, eta: Tensor) -> Tensor:
        """The gradient of `log_kernel`, (n_class, m): chi - nu * grad A(eta). It is zero at the only maximum."""
        return self.chi - self.nu * log_partition_gradient(eta)
