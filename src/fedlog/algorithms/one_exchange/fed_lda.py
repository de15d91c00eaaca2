"""Linear discriminant analysis from sums (FedCGS, Guan et al. 2025; GH-OFL, Turazza et al. 2026).

Counts, class sums and the second moments of all records give the pooled within-class covariance exactly. `share` of it
is replaced by a multiple of the identity: a number, or by default the closed form of Chen et al. 2010.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlog.algorithms.one_exchange.base import Noise, OneExchange, heard_moments
from fedlog.core.heads.gaussian import shared_covariance
from fedlog.core.heads.moments import Detail, Moments
from fedlog.core.heads.personal import mix_moments
from fedlog.models.body import Params


@dataclass(frozen=True)
class FedLDA(OneExchange):
    """Gaussian classes with one shared covariance."""

    share: float | None = None

    name = "fed-lda"
    detail = Detail.SECOND

    def solve(self, moments: Moments, noise: Noise) -> Tensor:
        """The discriminant of everyone's moments."""
        return shared_covariance(moments, self.share, noise.std, noise.count_above)

    def solve_own(self, own: Moments, heard: Params, strength: float) -> Tensor | None:
        """The discriminant of the own moments and everyone's, these counted as `strength` records."""
        everyone = heard_moments(heard, self.detail)
        return None if everyone is None else shared_covariance(mix_moments(everyone, own, strength), self.share)
