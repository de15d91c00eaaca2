"""Ridge regression on one-hot labels from sums (Fed3R, Fanì et al. 2024; AFL, He et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlog.algorithms.one_exchange.base import Noise, OneExchange
from fedlog.core.heads.moments import Detail, Moments
from fedlog.core.heads.ridge import ridge_around, ridge_head
from fedlog.models.body import HEAD, Params


@dataclass(frozen=True)
class FedRidge(OneExchange):
    """The least-squares head with a penalty of `strength` times the mean variance of a feature."""

    strength: float = 0.01

    name = "fed-ridge"
    detail = Detail.SECOND
    sends_moments_for_personal = False

    def solve(self, moments: Moments, noise: Noise) -> Tensor:
        """The ridge of everyone's moments."""
        return ridge_head(moments, self.strength, noise.std, noise.count_above)

    def solve_own(self, own: Moments, heard: Params, strength: float) -> Tensor | None:
        """The ridge of the own moments, drawn to the global head; the own records alone with the usual penalty."""
        if not strength:
            return ridge_head(own, self.strength)
        return ridge_around(own, heard[HEAD], strength / max(1.0, own.statistics.total))
