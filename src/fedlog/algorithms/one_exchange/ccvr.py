"""CCVR (Luo et al. 2021) on a frozen body: a Gaussian for each class, features drawn from it, a head trained on them.

The source calibrates the classifier of a FedAvg model after its training; here the body is frozen from the start, and
the calibration is all there is. Means and covariances of classes are exact, from sums; features are drawn from a key.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.algorithms.one_exchange.base import Noise, OneExchange
from fedlog.core.heads.gaussian import MAX_QUADRATIC
from fedlog.core.heads.logistic import fit_logistic
from fedlog.core.heads.moments import Detail, Moments
from fedlog.core.keys import Key
from fedlog.errors import InputError

RANK_ROUNDING = 1e-12  # of the largest variance: directions below it have none


@dataclass(frozen=True)
class CCVR(OneExchange):
    """A softmax head trained on `drawn` virtual features a class."""

    drawn: int = 200
    penalty: float = 1e-3
    seed: int = 0

    name = "ccvr"
    detail = Detail.CLASS_SECOND

    def __post_init__(self) -> None:
        if self.drawn < 1 or not self.penalty >= 0:
            raise InputError(f"ccvr needs drawn >= 1 and penalty >= 0: drawn {self.drawn}, penalty {self.penalty}")
        if self.personal:
            raise InputError(
                "ccvr has no personal heads: its head is trained on drawn features", hint="fed-lda has them"
            )
        if self.plan.n_class * self.plan.width**2 > MAX_QUADRATIC:
            raise InputError(
                f"ccvr would send covariances that are too large: {self.plan.n_class} of {self.plan.width} features",
                hint="project the features first: --project 64",
            )

    def solve(self, moments: Moments, noise: Noise) -> Tensor:
        """The head that is best on features drawn from the classes' Gaussians, equally many for each class."""
        means, present = moments.statistics.means()
        scatters = moments.class_scatters()
        features, labels = [], []
        for y in present.nonzero()[:, 0].tolist():
            covariance = scatters[y] / max(1.0, float(moments.statistics.counts[y]) - 1)
            key = Key(self.seed).child("ccvr", y)
            normal = torch.randn(self.drawn, moments.width, dtype=torch.float64, generator=key.torch())
            features.append(means[y, 1:] + normal @ _square_root(covariance))
            labels.append(torch.full((self.drawn,), y))
        return fit_logistic(torch.cat(features), torch.cat(labels), moments.n_class, self.penalty)


def _square_root(covariance: Tensor) -> Tensor:
    """The symmetric square root; directions whose variance is only rounding are left out.

    Eigenvectors alone would do for the distribution, but their signs and their order depend on the last bit of the
    sums: the same sums, added in another order, would draw other features.
    """
    values, vectors = torch.linalg.eigh(covariance)
    kept = torch.where(values > RANK_ROUNDING * values.max(), values, 0.0)
    root: Tensor = (vectors * kept.clamp_min(0).sqrt()) @ vectors.mT
    return root
