"""Ridge regression on one-hot labels, solved from sums (Fed3R, Fanì et al. 2024; AFL, He et al. 2025).

    W = argmin sum_i |W phi_i - onehot(y_i)|^2 + strength * (mean variance of a feature) * n * |W|^2

with an intercept that is not penalised. The two papers have no intercept; adding it needs no further sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedlog.core.heads.gaussian import ABSENT, join_weights_and_bias, solve_positive_definite
from fedlog.core.heads.shrinkage import raise_eigenvalues_to_noise
from fedlog.core.stats import Moments
from fedlog.errors import InputError


def solve_ridge_head(
    moments: Moments, strength: float = 1e-2, noise_std: float = 0.0, count_above: float = 0.0
) -> Tensor:
    """The ridge head (n_class, 1 + w) from summed moments, with the penalty `strength`.

    `noise_std` is the std of the privacy noise. Classes with at most `count_above` records are never predicted.
    """
    if not strength >= 0:
        raise InputError(f"the strength of a ridge penalty must be 0 or more, found: {strength}")
    sums = moments.statistics.sums
    present = moments.statistics.counts > max(count_above, 0.0)
    n = float(moments.statistics.counts[present].sum())
    centre = sums[present, 1:].sum(0) / n
    gram = raise_eigenvalues_to_noise(moments.gram() - n * torch.outer(centre, centre), noise_std)
    # If features do not vary, for example with a single record, the penalty keeps the matrix invertible.
    penalty = max(strength * float(gram.trace()) / moments.width, 1e-12)
    cross = sums[:, 1:] - moments.statistics.counts[:, None] * centre
    weights = solve_positive_definite(gram + penalty * torch.eye(moments.width, dtype=gram.dtype), cross.mT).mT
    bias = moments.statistics.counts / n - weights @ centre
    return join_weights_and_bias(weights, bias, present)


def solve_personal_ridge_head(own: Moments, head: Tensor, strength: float) -> Tensor:
    """A client's own ridge head: it minimises the client's squared error + strength * t * |W - head|^2.

    `head` is the global head. t is the mean diagonal entry of the client's second moments (constant included), so that
    the strength has no unit. Classes that the global head never predicts are not predicted either.
    """
    sums = own.statistics.sums
    gram = torch.zeros(own.width + 1, own.width + 1, dtype=torch.float64)
    gram[0, 0] = own.statistics.total
    gram[0, 1:] = gram[1:, 0] = sums[:, 1:].sum(0)
    gram[1:, 1:] = own.gram()
    absent = head[:, 0] <= ABSENT
    start = torch.where(absent[:, None], 0.0, head.to(torch.float64))
    weight = strength * float(gram.trace()) / gram.shape[0]
    weights = solve_positive_definite(
        gram + weight * torch.eye(gram.shape[0], dtype=torch.float64), (sums + weight * start).mT
    ).mT
    return torch.where(absent[:, None], head.to(torch.float64), weights)
