"""Heads that are solved from sums in closed form, side by side: they differ in what is summed and in the head.

| method      | summed beside class sums     | head                                      | source             |
|-------------|------------------------------|-------------------------------------------|--------------------|
| fedlog-once | nothing                      | FedLog's own                              | the paper, eq. 11  |
| fed-ncm     | nothing                      | the nearest class mean                    | Legate et al. 2023 |
| fed-nb      | squares of each class        | Gaussian naive Bayes                      | GH-OFL's diagonal  |
| fed-lda     | second moments               | linear discriminant analysis              | FedCGS, GH-OFL     |
| fed-qda     | second moments of each class | quadratic discriminant analysis, shrunken | Friedman 1989      |
| fed-ridge   | second moments               | ridge regression on one-hot labels        | Fed3R, AFL         |

FedCGS: Guan et al. 2025. GH-OFL: Turazza et al. 2026. Fed3R: Fanì et al. 2024. AFL: He et al. 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlog.algorithms.one_exchange.base import Noise, OneExchange
from fedlog.core.heads.gaussian import (
    ABSENT,
    QuadraticHead,
    nearest_mean,
    own_covariances,
    own_variances,
    shared_covariance,
)
from fedlog.core.heads.personal import own_fedlog_head
from fedlog.core.heads.ridge import ridge_around, ridge_head
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.core.stats import Detail, Moments, Statistics
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params


@dataclass(frozen=True)
class FedLogOnce(OneExchange):
    """The exact MAP head of everyone's statistics (eq. 11)."""

    nu: float = 1.0

    name = "fedlog-once"
    sends_moments_for_personal = False

    def __post_init__(self) -> None:
        if not self.nu >= 0:
            raise InputError(f"the prior's nu must not be negative: {self.nu}")

    def solve(self, moments: Moments, noise: Noise) -> Tensor:
        """The head of maximum posterior."""
        return solve_head(Prior(nu=self.nu).posterior(moments.statistics)).weights

    def solve_own(self, own: Moments, heard: Params, strength: float) -> Tensor:
        """The same with the global posterior as the prior: chi = s * grad A(eta_global) + Phi_own."""
        return own_fedlog_head(own.statistics, heard[HEAD], strength, self.nu)


@dataclass(frozen=True)
class FedNCM(OneExchange):
    """The head whose largest logit is that of the nearest global class mean."""

    name = "fed-ncm"
    sends_moments_for_personal = False

    def solve(self, moments: Moments, noise: Noise) -> Tensor:
        """The head of the nearest class mean of everyone's records."""
        return nearest_mean(moments.statistics, noise.count_above)

    def solve_own(self, own: Moments, heard: Params, strength: float) -> Tensor:
        """The nearest own class mean, with `strength` records at the global mean (half a row of the head) added."""
        head = heard[HEAD].to(own.statistics.sums)
        present = head[:, 0] > ABSENT
        means = head.clone() / 2
        means[:, 0] = 1.0
        prior = strength * means * present[:, None]
        return nearest_mean(Statistics(own.statistics.sums + prior))


@dataclass(frozen=True)
class FedNB(OneExchange):
    """Classes with variances of their own, a `share` of them pooled."""

    share: float = 0.0

    name = "fed-nb"
    detail = Detail.SQUARES

    def solve(self, moments: Moments, noise: Noise) -> QuadraticHead:
        """Naive Bayes."""
        return own_variances(moments, self.share)


@dataclass(frozen=True)
class FedLDA(OneExchange):
    """Gaussian classes with one shared covariance, which the sums give exactly.

    `share` of it is replaced by a multiple of the identity: a number, or by default the closed form
    of Chen et al. 2010.
    """

    share: float | None = None

    name = "fed-lda"
    detail = Detail.SECOND

    def solve(self, moments: Moments, noise: Noise) -> Tensor:
        """The linear discriminant."""
        return shared_covariance(moments, self.share, noise.std, noise.count_above)


@dataclass(frozen=True)
class FedQDA(OneExchange):
    """Classes with covariances of their own, shrunk to the pooled one and to the identity.

    Each class's second moments are sent, so it is for narrow features: `--project 64` first.
    """

    towards_pooled: float = 0.5
    share: float | None = None

    name = "fed-qda"
    detail = Detail.CLASS_SECOND

    def solve(self, moments: Moments, noise: Noise) -> QuadraticHead:
        """The quadratic discriminant."""
        return own_covariances(moments, self.towards_pooled, self.share)


@dataclass(frozen=True)
class FedRidge(OneExchange):
    """The least-squares head with a penalty of `strength` times the mean variance of a feature."""

    strength: float = 0.01

    name = "fed-ridge"
    detail = Detail.SECOND
    sends_moments_for_personal = False

    def solve(self, moments: Moments, noise: Noise) -> Tensor:
        """The ridge head of everyone's moments."""
        return ridge_head(moments, self.strength, noise.std, noise.count_above)

    def solve_own(self, own: Moments, heard: Params, strength: float) -> Tensor:
        """A ridge head from the site's moments, shrunk to the global head; with strength 0, a plain ridge head."""
        if not strength:
            return ridge_head(own, self.strength)
        return ridge_around(own, heard[HEAD], strength / max(1.0, own.statistics.total))
