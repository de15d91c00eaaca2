"""Gaussian naive Bayes from sums (GH-OFL's diagonal head): class means and the squares of each class."""

from __future__ import annotations

from dataclasses import dataclass

from fedlog.algorithms.one_exchange.base import Noise, OneExchange, heard_moments
from fedlog.core.heads.gaussian import QuadraticHead, own_variances
from fedlog.core.heads.moments import Detail, Moments
from fedlog.core.heads.personal import mix_moments
from fedlog.models.body import Params


@dataclass(frozen=True)
class FedNB(OneExchange):
    """Classes with variances of their own, a `share` of them pooled."""

    share: float = 0.0

    name = "fed-nb"
    detail = Detail.SQUARES

    def solve(self, moments: Moments, noise: Noise) -> QuadraticHead:
        """Naive Bayes on everyone's moments."""
        return own_variances(moments, self.share)

    def solve_own(self, own: Moments, heard: Params, strength: float) -> QuadraticHead | None:
        """Naive Bayes on the own moments and everyone's, these counted as `strength` records."""
        everyone = heard_moments(heard, self.detail)
        return None if everyone is None else own_variances(mix_moments(everyone, own, strength), self.share)
