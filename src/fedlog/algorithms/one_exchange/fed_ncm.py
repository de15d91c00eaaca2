"""FedNCM (Legate et al. 2023): the nearest class mean, from counts and class sums alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlog.algorithms.one_exchange.base import Noise, OneExchange
from fedlog.core.heads.gaussian import ABSENT, nearest_mean
from fedlog.core.heads.moments import Moments
from fedlog.core.stats import Statistics
from fedlog.models.body import HEAD, Params


@dataclass(frozen=True)
class FedNCM(OneExchange):
    """The head whose largest logit is that of the nearest global class mean."""

    name = "fed-ncm"
    sends_moments_for_personal = False

    def solve(self, moments: Moments, noise: Noise) -> Tensor:
        """Means of everyone's records."""
        return nearest_mean(moments.statistics, noise.count_above)

    def solve_own(self, own: Moments, heard: Params, strength: float) -> Tensor:
        """Own class means, each with `strength` records at the global mean: half the head's rows."""
        head = heard[HEAD].to(own.statistics.sums)
        present = head[:, 0] > ABSENT
        means = head.clone() / 2
        means[:, 0] = 1.0
        prior = strength * means * present[:, None]
        return nearest_mean(Statistics(own.statistics.sums + prior))
