"""Personal heads: a site solves its own head, with the global head as the prior and its own records as the data.

Nothing more is sent for it. The strength s is the number of records that the global head counts as: with s = 0 only
the site's records count, with s = infinity only the global head.
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
"""The strengths to choose from: from the global head alone to the site's records alone."""


def personal_fedlog_head(own: Statistics, head: Tensor, strength: float, nu: float = 1.0) -> Tensor:
    """FedLog's head with chi = s * grad A(eta_global) + Phi_own and s + n_own records; for s = 0 the prior is `nu`."""
    if math.isinf(strength):
        return head
    if not strength:
        return solve_head(Prior(nu=nu).posterior(own)).weights
    prior = Prior(strength * log_partition_gradient(head.to(own.sums)), strength)
    return solve_head(prior.posterior(own)).weights


def mix_moments(everyone: Moments, own: Moments, strength: float) -> Moments:
    """The sum of a site's moments and those of all sites, which are scaled to `strength` records."""
    if math.isinf(strength):
        return everyone
    total = everyone.statistics.total
    return own + everyone * (strength / total) if strength and total > 0 else own


def personal_softmax_head(features: Tensor, labels: Tensor, records: float, head: Tensor, strength: float) -> Tensor:
    """A softmax head for features (n, w) that stand for `records` records of a site, with the global head as prior.

    The prior is a Gaussian around the global head, as narrow as `strength` records would make it: for standardised
    features the curvature of cross-entropy is p (1 - p) a record, with p = 1 / classes for a head that knows nothing.
    """
    classes = max(2, int((head[:, 0] > ABSENT).sum()))
    return fit_logistic_around(features, labels, head, strength / records * (classes - 1) / classes**2)
