"""Personal heads: a client solves its own head, with the global head as the prior and its own records as the data.

No message is needed for that. The strength s is the number of records that the global head counts as: with s = 0 only
the client's records count, with s = infinity only the global head.
"""

from __future__ import annotations

import math

from torch import Tensor

from fedlog.core.heads.gaussian import ABSENT
from fedlog.core.heads.logistic import fit_logistic_near_head
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior, log_partition_gradient
from fedlog.core.stats import Moments, Statistics

STRENGTHS = (math.inf, 1000.0, 100.0, 10.0, 0.0)
"""The strengths to choose from: from the global head alone to the client's records alone."""


def solve_personal_fedlog_head(own: Statistics, head: Tensor, strength: float, nu: float = 1.0) -> Tensor:
    """A client's own FedLog head: the global `head` counts as `strength` records, and the client's records are added.

    In the notation of core/posterior.py, the posterior has chi = s * grad A(eta_global) + Phi_own and nu = s + n_own.
    For s = 0 the prior is chi = 0 with `nu` imagined records.
    """
    if math.isinf(strength):
        return head
    if not strength:
        return solve_head(Prior(nu=nu).posterior(own)).weights
    prior = Prior(strength * log_partition_gradient(head.to(own.sums)), strength)
    return solve_head(prior.posterior(own)).weights


def mix_moments(everyone: Moments, own: Moments, strength: float) -> Moments:
    """A client's moments `own` plus the moments of all clients, which are scaled to count as `strength` records."""
    if math.isinf(strength):
        return everyone
    total = everyone.statistics.total
    return own + everyone * (strength / total) if strength and total > 0 else own


def fit_personal_softmax_head(
    features: Tensor, labels: Tensor, n_records: float, head: Tensor, strength: float
) -> Tensor:
    """A client's own softmax head, fitted to features (n, w) and labels (n,), with the global `head` as the prior.

    The n rows of features stand for `n_records` records of the client. The prior is a Gaussian around the global head
    with the precision strength * p * (1 - p), where p = 1 / classes: for standardised features, p * (1 - p) is what a
    record adds to the precision if the head is still undecided between the classes.
    """
    classes = max(2, int((head[:, 0] > ABSENT).sum()))
    return fit_logistic_near_head(features, labels, head, strength / n_records * (classes - 1) / classes**2)
