"""FedCOF (Goswami et al. 2024): a ridge head with covariances that are estimated from the clients' class means alone.

The class means of clients that hold n_cy records of class y scatter around mu_y with covariance Sigma_y / n_cy, so

    S_y = sum_c n_cy (mu_cy - mu_y)(mu_cy - mu_y)^T / (C_y - 1),    over the C_y clients that hold class y,

is an unbiased estimate of Sigma_y if all clients' records come from one distribution; S_y + gamma * I is used. The head
is a ridge head with the Gram matrix sum_y (n_y - 1)(S_y + gamma * I) + n m m^T, where m is the mean of all records. As
in the paper, this matrix leaves out the scatter between classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.core.heads.gaussian import join_weights_and_bias, solve_positive_definite
from fedlog.core.packed_matrix import pack_triangle, unpack_triangle
from fedlog.core.stats import Moments, Statistics


@dataclass(frozen=True, eq=False)
class MeanScatterSums:
    """Three sums over clients, from which FedCOF computes how much the clients' class means scatter."""

    sums: Tensor
    """The class sums (n_class, 1 + w), with the counts in column 0."""
    outer: Tensor
    """For each class y the sum of n_cy mu_cy mu_cy^T over clients c, packed, (n_class, w (w + 1) / 2)."""
    holders: Tensor
    """How many clients hold records of each class, (n_class,)."""

    @staticmethod
    def from_means(means: Tensor, counts: Tensor) -> MeanScatterSums:
        """The sums for a single client, from its class means (n_class, w) and counts (n_class,)."""
        means, counts = means.to(torch.float64), counts.to(torch.float64)
        outer = pack_triangle(means[:, :, None] * means[:, None, :]) * counts[:, None]
        sums = torch.cat([counts[:, None], means * counts[:, None]], dim=1)
        return MeanScatterSums(sums, outer, (counts > 0).to(torch.float64))


def estimate_gram(scatter: MeanScatterSums, gamma: float = 1.0) -> Tensor:
    """The Gram matrix (w, w), estimated from the class means of all clients."""
    statistics = Statistics(scatter.sums)
    means, present = statistics.means()
    mu, counts, width = means[:, 1:], statistics.counts, statistics.n_columns - 1
    eye = torch.eye(width, dtype=torch.float64)
    centre = scatter.sums[:, 1:].sum(0) / statistics.total
    gram = statistics.total * torch.outer(centre, centre)
    for y in present.nonzero()[:, 0].tolist():
        between_clients = unpack_triangle(scatter.outer[y], width) - counts[y] * torch.outer(mu[y], mu[y])
        covariance = between_clients / max(1.0, float(scatter.holders[y]) - 1) + gamma * eye
        gram += (counts[y] - 1) * covariance
    return gram


def estimate_gram_of_client(own: Moments, gamma: float = 1.0) -> Tensor:
    """The Gram matrix (w, w) that FedCOF's formula gives if each record of one client is taken as a separate client."""
    counts = own.statistics.counts
    centre = own.statistics.sums[:, 1:].sum(0) / own.statistics.total
    ridge = gamma * float((counts - 1).clamp_min(0).sum())
    return (
        own.within_scatter()
        + ridge * torch.eye(own.width, dtype=torch.float64)
        + own.statistics.total * torch.outer(centre, centre)
    )


def solve_ridge_with_unit_rows(statistics: Statistics, gram: Tensor) -> Tensor:
    """The ridge head (n_class, 1 + w) from class sums and a Gram matrix, with biases of 0 and rows of norm 1."""
    present = statistics.counts > 0
    weights = solve_positive_definite(gram, statistics.sums[:, 1:].mT).mT
    weights = weights / weights.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return join_weights_and_bias(weights, torch.zeros_like(statistics.counts), present)
