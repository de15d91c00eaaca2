"""Mixtures of Gaussians with diagonal covariances, one for each class (FedPFT, Beitollahi et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.core.keys import Key

STEPS = 30
FLOOR = 1e-6  # the smallest variance, as a share of the class's mean variance
MOST_ENTRIES = 2**27  # limit on all drawn features together, a gigabyte: a client may claim any number of records


@dataclass(frozen=True, eq=False)
class Mixtures:
    """Gaussians with diagonal covariances, the same number of them (`parts`) for each class."""

    counts: Tensor
    """How many records each Gaussian stands for, (n_class * parts,)."""
    means: Tensor
    """(n_class * parts, w), as the variances."""
    variances: Tensor


def fit_mixtures(
    features: Tensor, labels: Tensor, n_class: int, parts: int, key: Key, fewest: int | None = None
) -> Mixtures:
    """A mixture of `parts` Gaussians for each class, fitted by expectation maximisation.

    A class without records gets Gaussians with a count of 0. With `fewest`, small Gaussians of one class are
    joined until each stands for at least `fewest` records, or only one is left.
    """
    width = features.shape[1]
    counts = torch.zeros(n_class, parts, dtype=torch.float64)
    means, variances = torch.zeros(2, n_class, parts, width, dtype=torch.float64)
    x = features.to(torch.float64)
    for label in sorted(set(labels.tolist())):
        own = x[labels == label]
        found = join_small_gaussians(_fit_class(own, min(parts, len(own)), key.child("class", label)), fewest or 0)
        used = len(found.counts)
        counts[label, :used], means[label, :used] = found.counts, found.means
        variances[label, :used] = found.variances
    return Mixtures(counts.reshape(-1), means.reshape(-1, width), variances.reshape(-1, width))


def join_small_gaussians(mixture: Mixtures, fewest: int) -> Mixtures:
    """The Gaussians of one class; those of fewer than `fewest` records are joined to the nearest, smallest first.

    A joined Gaussian has the mean, the variance and the count of the two together. At least one Gaussian is left.
    """
    counts, means, variances = mixture.counts, mixture.means, mixture.variances
    while len(counts) > 1 and float(counts.min()) < fewest:
        small = int(counts.argmin())
        distances = (means - means[small]).square().sum(1)
        distances[small] = torch.inf
        pair = torch.tensor([small, int(distances.argmin())])
        others = torch.ones(len(counts), dtype=torch.bool).index_fill(0, pair, False)
        number = counts[pair].sum()
        mean = (counts[pair, None] * means[pair]).sum(0) / number
        around = variances[pair] + (means[pair] - mean).square()
        variance = (counts[pair, None] * around).sum(0) / number
        counts = torch.cat([counts[others], number[None]])
        means, variances = torch.cat([means[others], mean[None]]), torch.cat([variances[others], variance[None]])
    return Mixtures(counts, means, variances)


def draw_features(mixtures: Mixtures, classes: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """Random features (n, w) and their labels (n,): for each record that a Gaussian stands for, one draw from it.

    `classes` has the class of each Gaussian. If more than `MOST_ENTRIES` numbers would be drawn, fewer features are
    drawn from each Gaussian, in proportion, but at least one.
    """
    mixtures, classes = _sort_by_content(mixtures, classes)
    counts, width = mixtures.counts.round().clamp_min(0), mixtures.means.shape[1]
    if float(counts.sum()) * width > MOST_ENTRIES:
        counts = (counts * (MOST_ENTRIES / width / float(counts.sum()))).ceil()
    counts = counts.to(torch.int64)
    which = torch.repeat_interleave(torch.arange(len(counts)), counts)
    noise = torch.randn(len(which), mixtures.means.shape[1], dtype=torch.float64, generator=key.torch())
    return mixtures.means[which] + noise * mixtures.variances[which].sqrt(), classes[which]


def _sort_by_content(mixtures: Mixtures, classes: Tensor) -> tuple[Mixtures, Tensor]:
    """The Gaussians with a count above 0, sorted by their values, so that the order of clients does not matter."""
    used = (mixtures.counts > 0).nonzero()[:, 0].tolist()
    order = sorted(used, key=lambda at: (int(classes[at]), *mixtures.means[at].tolist(), float(mixtures.counts[at])))
    at = torch.tensor(order, dtype=torch.int64)
    return Mixtures(mixtures.counts[at], mixtures.means[at], mixtures.variances[at]), classes[at]


def _fit_class(x: Tensor, parts: int, key: Key) -> Mixtures:
    """The mixture of `parts` Gaussians of one class, whose records have the features `x` (n, w)."""
    floor = FLOOR * float(x.var(0, correction=0).mean()) + 1e-12
    if parts == 1:
        number = torch.tensor([float(len(x))], dtype=torch.float64)
        return Mixtures(number, x.mean(0)[None], x.var(0, correction=0).clamp_min(floor)[None])
    means = x[torch.randperm(len(x), generator=key.torch())[:parts]]
    variances = x.var(0, correction=0).clamp_min(floor).expand(parts, -1).clone()
    shares = torch.full((parts,), 1 / parts, dtype=torch.float64)
    for _ in range(STEPS):
        logs = _compute_log_densities(x, means, variances) + shares.log()
        chances = torch.softmax(logs, dim=1)
        weights = chances.sum(0).clamp_min(1e-9)
        means = chances.mT @ x / weights[:, None]
        variances = (chances.mT @ x.square() / weights[:, None] - means.square()).clamp_min(floor)
        shares = weights / weights.sum()
    return Mixtures(shares * len(x), means, variances)


def _compute_log_densities(x: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """The log density of each record under each Gaussian, (n, parts)."""
    precision = 1 / variances
    distance = x.square() @ precision.mT - 2 * x @ (means * precision).mT + (means.square() * precision).sum(1)
    return -(distance + variances.log().sum(1) + x.shape[1] * math.log(2 * math.pi)) / 2
