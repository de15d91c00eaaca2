"""Methods with a head in closed form; they differ in what is summed and in the head.

| method      | summed besides class sums    | head                                      | source             |
|-------------|------------------------------|-------------------------------------------|--------------------|
| fedlog-once | nothing                      | FedLog's own                              | the paper, eq. 11  |
| fed-ncm     | nothing                      | the nearest class mean                    | Legate et al. 2023 |
| fed-nb      | squares of each class        | Gaussian naive Bayes                      | GH-OFL (diagonal)  |
| fed-lda     | second moments               | linear discriminant analysis              | FedCGS, GH-OFL     |
| fed-qda     | second moments of each class | quadratic discriminant analysis, shrunken | Friedman 1989      |
| fed-ridge   | second moments               | ridge regression on one-hot labels        | Fed3R, AFL         |

FedCGS: Guan et al. 2025. GH-OFL: Turazza et al. 2026. Fed3R: Fanì et al. 2024. AFL: He et al. 2025.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlog.algorithms.one_exchange.base import OneExchange
from fedlog.core.heads.gaussian import (
    ABSENT,
    QuadraticHead,
    solve_linear_discriminant,
    solve_naive_bayes,
    solve_nearest_mean_head,
    solve_quadratic_discriminant,
)
from fedlog.core.heads.personal import solve_personal_fedlog_head
from fedlog.core.heads.ridge import solve_personal_ridge_head, solve_ridge_head
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.core.stats import Detail, Moments, Statistics, find_least_count_for_mean
from fedlog.models.body import HEAD, Params


@dataclass(frozen=True)
class FedLogOnce(OneExchange):
    """FedLog's exact MAP head of the summed statistics (eq. 11), on frozen bodies."""

    nu: float = 1.0

    name = "fedlog-once"
    sends_moments_for_personal = False

    def __post_init__(self) -> None:
        self._check_option("nu", self.nu >= 0, "must not be negative")

    def solve(self, moments: Moments, noise_std: float = 0.0) -> Tensor:
        """FedLog's MAP head of the summed moments."""
        return solve_head(Prior(nu=self.nu).posterior(moments.statistics)).weights

    def solve_personal_head(self, own: Moments, received: Params, strength: float) -> Tensor:
        """The client's MAP head; the prior is the global head, which counts as `strength` records."""
        return solve_personal_fedlog_head(own.statistics, received[HEAD], strength, self.nu)


@dataclass(frozen=True)
class FedNCM(OneExchange):
    """Nearest class mean: the head predicts the class whose mean over all clients is nearest."""

    name = "fed-ncm"
    sends_moments_for_personal = False

    def solve(self, moments: Moments, noise_std: float = 0.0) -> Tensor:
        """The head that chooses the nearest class mean of all records."""
        return solve_nearest_mean_head(moments.statistics, find_least_count_for_mean(noise_std))

    def solve_personal_head(self, own: Moments, received: Params, strength: float) -> Tensor:
        """The client's nearest-mean head, as if it had `strength` more records at each global class mean."""
        head = received[HEAD].to(own.statistics.sums)
        present = head[:, 0] > ABSENT
        means = head.clone() / 2  # the rows of a nearest-mean head are twice the means
        means[:, 0] = 1.0
        prior = strength * means * present[:, None]
        return solve_nearest_mean_head(Statistics(own.statistics.sums + prior))


@dataclass(frozen=True)
class FedNB(OneExchange):
    """Gaussian naive Bayes: each class has its own variances, mixed with a `share` of the pooled variances."""

    share: float = 0.0

    name = "fed-nb"
    detail = Detail.SQUARES

    def __post_init__(self) -> None:
        self._check_option("share", 0 <= self.share <= 1, "must be 0 to 1")

    def solve(self, moments: Moments, noise_std: float = 0.0) -> QuadraticHead:
        """The naive Bayes head of the summed moments."""
        return solve_naive_bayes(moments, self.share)


@dataclass(frozen=True)
class FedLDA(OneExchange):
    """Linear discriminant analysis: Gaussian classes with one shared covariance, which the sums give exactly.

    A `share` of the covariance is replaced by a multiple of the identity. If the share is None, it is computed from the
    covariance (Chen et al. 2010).
    """

    share: float | None = None

    name = "fed-lda"
    detail = Detail.SECOND

    def __post_init__(self) -> None:
        self._check_option("share", self.share is None or 0 <= self.share <= 1, "must be 0 to 1")

    def solve(self, moments: Moments, noise_std: float = 0.0) -> Tensor:
        """The linear discriminant head of the summed moments."""
        return solve_linear_discriminant(moments, self.share, noise_std, find_least_count_for_mean(noise_std))


@dataclass(frozen=True)
class FedQDA(OneExchange):
    """Quadratic discriminant analysis: each class has its own covariance, shrunk to the pooled one and to the identity.

    The second moments of each class are sent, so use this method with few features: `--project 64`.
    """

    towards_pooled: float = 0.5
    share: float | None = None

    name = "fed-qda"
    detail = Detail.CLASS_SECOND

    def __post_init__(self) -> None:
        self._check_option("towards_pooled", 0 <= self.towards_pooled <= 1, "must be 0 to 1")
        self._check_option("share", self.share is None or 0 <= self.share <= 1, "must be 0 to 1")

    def solve(self, moments: Moments, noise_std: float = 0.0) -> QuadraticHead:
        """The quadratic discriminant head of the summed moments."""
        return solve_quadratic_discriminant(moments, self.towards_pooled, self.share)


@dataclass(frozen=True)
class FedRidge(OneExchange):
    """Ridge regression on one-hot labels, with a penalty of `strength` times the mean variance of a feature."""

    strength: float = 0.01

    name = "fed-ridge"
    detail = Detail.SECOND
    sends_moments_for_personal = False

    def solve(self, moments: Moments, noise_std: float = 0.0) -> Tensor:
        """The ridge head of the summed moments."""
        return solve_ridge_head(moments, self.strength, noise_std, find_least_count_for_mean(noise_std))

    def solve_personal_head(self, own: Moments, received: Params, strength: float) -> Tensor:
        """A ridge head from the client's moments, near the global head, which counts as `strength` records.

        With 0 records it is an ordinary ridge head of the client's moments, with the penalty `self.strength`.
        """
        if not strength:
            return solve_ridge_head(own, self.strength)
        return solve_personal_ridge_head(own, received[HEAD], strength / max(1.0, own.statistics.total))
