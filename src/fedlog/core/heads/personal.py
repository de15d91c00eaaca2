"""A head of one's own: the global head as the prior, a site's own statistics as the data.

Only what a site knows anyway goes in, so nothing more crosses. The strength s is the number of records that the
global head counts as: with 0 only the own records count, with infinity only the global head.
"""

from __future__ import annotations

import math

from torch import Tensor

from fedlog.core.heads.gaussian import ABSENT
from fedlog.core.heads.logistic import fit_logistic_around
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior, log_partition_gradient
from fedlog.core.stats import Moments, Statistics

STRENGTHS = (math.inf, 1000.0, 100.0, 10.0, 0.0)
"""The short grid: from the global head to the own records alone."""


def own_fedlog_head(own: Statistics, head: Tensor, strength: float, nu: float = 1.0) -> Tensor:
    """FedLog's head with chi = s * grad A(eta_global) + Phi_own and s + n_own records; s = 0 takes the prior `nu`."""
    if math.isinf(strength):
        return head
    if not strength:
        return solve_head(Prior(nu=nu).posterior(own)).weights
    prior = Prior(strength * log_partition_gradient(head.to(own.sums)), strength)
    return solve_head(prior.posterior(own)).weights


def mix_moments(everyone: Moments, own: Moments, strength: float) -> Moments:
    """The own moments and those of everyone, scaled to `strength` records: what a Gaussian head is solved from."""
    if math.isinf(strength):
        return everyone
    total = everyone.statistics.total
    return own + everyone * (strength / total) if strength and total > 0 else own


def own_softmax_head(features: Tensor, labels: Tensor, records: float, head: Tensor, strength: float) -> Tensor:
    """A softmax head of features (n, w) that stand for `records` own ones, with the global head as its prior.

    The prior is a Gaussian around the global head, as narrow as `strength` records make it: in standardised features
    cross-entropy curves by p (1 - p) a record, and p is 1 / classes where a head says nothing.
    """
    classes = max(2, int((head[:, 0] > ABSENT).sum()))
    return fit_logistic_around(features, labels, head, strength / records * (classes - 1) / classes**2)
