"""The conjugate prior of the head and the posterior it becomes: both are a matrix `chi` and a strength `nu`.

ln p(eta) = <eta, chi> - nu * A(eta) + constant          prior
ln p(eta | records) = <eta, chi + Phi> - (nu + n) * A(eta) + constant          posterior
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.core.family import log_partition, log_partition_gradient
from fedlog.core.stats import Statistics
from fedlog.errors import InputError


@dataclass(frozen=True, eq=False)
class Prior:
    """What is believed of the head before any record: `nu` imagined records with summed statistics `chi`.

    `chi` is (n_class, m) or None for zeros. `nu` may be 0 (the head of maximum likelihood): that is no proper prior,
    and then there must be data, which `posterior` checks.
    """

    chi: Tensor | None = None
    nu: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.nu) and self.nu >= 0):
            raise InputError(f"the prior's nu must be a finite number, 0 or more, found: {self.nu}")
        if self.chi is not None and not bool(torch.isfinite(self.chi).all()):
            raise InputError("the prior's chi must be finite, found: NaN or infinity")

    def posterior(self, statistics: Statistics) -> Posterior:
        """The posterior after the records summed in `statistics`.

        Raises InputError when chi has another shape, or when nu plus their number is not above 0: there is no maximum
        then.
        """
        chi = torch.zeros_like(statistics.sums) if self.chi is None else self.chi.to(statistics.sums)
        if chi.shape != statistics.sums.shape:
            shapes = f"{tuple(chi.shape)}, statistics {tuple(statistics.sums.shape)}"
            raise InputError(f"the prior's chi must have the shape of the statistics, found: chi {shapes}")
        return Posterior(chi + statistics.sums, self.nu + statistics.total)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is believed of the head after the records: `chi` (n_class, m) float64 and `nu` > 0, prior included."""

    chi: Tensor
    nu: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.nu) and self.nu > 0):
            raise InputError(
                f"the posterior's strength nu + n must be a finite number above 0, found: {self.nu}",
                hint="there is no record, or noise has swallowed the counts: keep the old head or raise nu",
            )
        if not bool(torch.isfinite(self.chi).all()):
            raise InputError("the posterior's chi must be finite, found: NaN or infinity")
        object.__setattr__(self, "chi", self.chi.detach().to(torch.float64))

    def log_kernel(self, eta: Tensor) -> Tensor:
        """<eta, chi> - nu * A(eta): the log density up to a constant, concave in `eta` (n_class, m) float64."""
        return (eta * self.chi).sum() - self.nu * log_partition(eta)

    def gradient(self, eta: Tensor) -> Tensor:
        """The gradient of `log_kernel`, (n_class, m): chi - nu * grad A(eta). It is zero at the one maximum."""
        return self.chi - self.nu * log_partition_gradient(eta)
