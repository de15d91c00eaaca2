"""Shrunken quadratic discriminant analysis from sums (Friedman 1989; GH-OFL's full head).

Each class's second moments are sent, so it is for narrow features: `--project 64` first.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedlog.algorithms.one_exchange.base import Noise, OneExchange, heard_moments
from fedlog.core.heads.gaussian import QuadraticHead, own_covariances
from fedlog.core.heads.moments import Detail, Moments
from fedlog.core.heads.personal import mix_moments
from fedlog.models.body import Params


@dataclass(frozen=True)
class FedQDA(OneExchange):
    """Classes with covariances of their own, shrunk to the pooled one and to the identity."""

    towards_pooled: float = 0.5
    share: float | None = None

    name = "fed-qda"
    detail = Detail.CLASS_SECOND

    def solve(self, moments: Moments, noise: Noise) -> QuadraticHead:
        """The quadratic discriminant of everyone's moments."""
        return own_covariances(moments, self.towards_pooled, self.share)

    def solve_own(self, own: Moments, heard: Params, strength: float) -> QuadraticHead | None:
        """The quadratic discriminant of the own moments and everyone's, these counted as `strength` records."""
        everyone = heard_moments(heard, self.detail)
        if everyone is None:
            return None
        return own_covariances(mix_moments(everyone, own, strength), self.towards_pooled, self.share)
