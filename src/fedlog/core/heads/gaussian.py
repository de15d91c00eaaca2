"""Heads for Gaussian classes: nearest mean, linear (LDA) and quadratic (QDA) discriminant, and naive Bayes.

Linear heads are (n_class, 1 + w) with the bias in column 0. A class without records gets the lowest possible bias, so
that it is never predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.core.heads.shrinkage import raise_eigenvalues_to_noise, shrink_covariance
from fedlog.core.stats import Detail, Moments, Statistics
from fedlog.errors import InputError

ABSENT = float(torch.finfo(torch.float32).min)
# This share of the largest variance is added to all variances, as in scikit-learn's GaussianNB.
SMOOTHING = 1e-9
# A quadratic head with more entries in all its matrices is too large to send.
MAX_QUADRATIC = 2**26


@dataclass(frozen=True, eq=False)
class QuadraticHead:
    """A head whose logits are quadratic in the features: b_y + w_y . phi + phi^T Q_y phi for class y.

    `linear` is (n_class, 1 + w); `quadratic` is (n_class, w, w), or (n_class, w) if each Q_y is diagonal.
    """

    linear: Tensor
    quadratic: Tensor


def solve_nearest_mean_head(statistics: Statistics, count_above: float = 0.0) -> Tensor:
    """The head that chooses the nearest class mean; its logits are |phi|^2 - |phi - mu|^2.

    Classes with at most `count_above` records are never predicted. Unlike in FedNCM (Legate et al. 2023), means are not
    divided by their norm; to divide features by their norm, add `+unit` to the body's name.
    """
    means, present = statistics.means(count_above)
    return make_nearest_mean_head(means[:, 1:], present)


def make_nearest_mean_head(means: Tensor, present: Tensor) -> Tensor:
    """The head that chooses the nearest of these means (n_class, w); `present` marks the classes that have one."""
    return join_weights_and_bias(2 * means, -means.square().sum(1), present)


def solve_linear_discriminant(
    moments: Moments, share: float | None = None, noise_std: float = 0.0, count_above: float = 0.0
) -> Tensor:
    """Linear discriminant analysis: w_y = S^-1 mu_y, b_y = -mu_y S^-1 mu_y / 2 + ln(n_y / n).

    S is the pooled within-class covariance, shrunk towards the identity by `share` (None: see `find_oracle_shrinkage`).
    `noise_std` is the std of the privacy noise. Classes with at most `count_above` records are never predicted.
    """
    means, present = moments.statistics.means(count_above)
    counts = moments.statistics.counts
    mu = means[:, 1:]
    degrees = max(1.0, float(counts[present].sum()) - int(present.sum()))
    scatter = raise_eigenvalues_to_noise(moments.within_scatter(), noise_std)
    covariance = shrink_covariance(scatter / degrees, degrees, share)
    weights = solve_positive_definite(covariance, mu.mT).mT
    shares = torch.where(present, counts, 1.0) / counts[present].sum()
    bias = -(mu * weights).sum(1) / 2 + torch.log(shares)
    return join_weights_and_bias(weights, bias, present)


def solve_naive_bayes(moments: Moments, share: float = 0.0) -> QuadraticHead:
    """Gaussian naive Bayes: each class has its own variances, mixed with a `share` of the pooled variances."""
    _require_share(share)
    means, present = moments.statistics.means()
    counts = moments.statistics.counts
    squares = moments.class_scatter_diagonals()
    safe = torch.where(present, counts, 1.0)[:, None]
    pooled = squares[present].sum(0) / counts[present].sum()
    variances = (1 - share) * squares / safe + share * pooled
    total = moments.second.sum(0) / counts.sum() if moments.second is not None else pooled
    spread = total - (moments.statistics.sums[present, 1:].sum(0) / counts.sum()).square()
    smallest = SMOOTHING * spread.max()
    # Equal records, or a single one, have no variance; any positive one gives their class.
    variances = torch.where(present[:, None], variances, pooled) + torch.where(smallest > 0, smallest, 1.0)
    mu, shares = means[:, 1:], torch.where(present, counts, 1.0) / counts[present].sum()
    bias = -(mu.square() / variances + torch.log(variances)).sum(1) / 2 + torch.log(shares)
    return QuadraticHead(join_weights_and_bias(mu / variances, bias, present), -0.5 / variances)


def solve_quadratic_discriminant(
    moments: Moments, towards_pooled: float = 0.5, share: float | None = None
) -> QuadraticHead:
    """Regularised quadratic discriminant analysis (Friedman 1989): each class has its own covariance, shrunk twice.

    The first step gives ((1 - a) S_y + a S) / ((1 - a) n_y + a n), where a is `towards_pooled`, S_y and n_y are the
    scatter and the count of class y, and S and n are their sums over classes. So a class with fewer records gets more
    of S. The second step shrinks towards a multiple of the identity by `share` (None: see `find_oracle_shrinkage`).
    """
    _require_share(towards_pooled)
    entries = moments.n_class * moments.width**2
    if entries > MAX_QUADRATIC:
        raise InputError(
            f"a quadratic head has at most {MAX_QUADRATIC} entries (classes x features x features), "
            f"found: {entries} ({moments.n_class} classes and {moments.width} features)",
            hint="project the features first: --project 64",
        )
    means, present = moments.statistics.means()
    counts = moments.statistics.counts
    scatters = moments.class_scatters()
    pooled, everyone = scatters[present].sum(0), float(counts[present].sum())
    linear, quadratic = torch.zeros_like(means), torch.zeros_like(scatters)
    for y in present.nonzero()[:, 0].tolist():
        degrees = (1 - towards_pooled) * float(counts[y]) + towards_pooled * everyone
        mixed = ((1 - towards_pooled) * scatters[y] + towards_pooled * pooled) / degrees
        covariance = shrink_covariance(mixed, degrees, share)
        precision = torch.cholesky_inverse(_compute_cholesky_factor(covariance))
        mu = means[y, 1:]
        quadratic[y] = -precision / 2
        linear[y, 1:] = precision @ mu
        log_determinant = float(torch.linalg.slogdet(covariance).logabsdet)
        linear[y, 0] = -(mu @ precision @ mu + log_determinant) / 2 + torch.log(counts[y] / everyone)
    return QuadraticHead(join_weights_and_bias(linear[:, 1:], linear[:, 0], present), quadratic)


def find_detail_for_head(head: str) -> Detail:
    """The second moments that the head of this name is computed from; InputError for an unknown name."""
    details = {"fedlog": Detail.MEANS, "ncm": Detail.MEANS, "lda": Detail.SECOND, "ridge": Detail.SECOND}
    if head not in details:
        raise InputError(f"unknown head: {head}", hint=f"one of {', '.join(details)}")
    return details[head]


def join_weights_and_bias(weights: Tensor, bias: Tensor, present: Tensor) -> Tensor:
    """The head (n_class, 1 + w) with these weights and biases; classes that are not present are never predicted."""
    bias = torch.where(present, bias, ABSENT)
    return torch.cat([bias[:, None], torch.where(present[:, None], weights, 0.0)], dim=1)


def _require_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise InputError(f"the share of the pooled covariance must be 0 to 1, found: {share}")


def _compute_cholesky_factor(matrix: Tensor) -> Tensor:
    """The lower Cholesky factor of a matrix; InputError if the matrix is not positive definite."""
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info):
        raise InputError(
            "the covariance of the features cannot be inverted: some feature is a combination of others",
            hint="raise the option that regularises the head (`share`, `strength` or `gamma`), or use fewer features: "
            "--project N",
        )
    return factor


def solve_positive_definite(matrix: Tensor, right: Tensor) -> Tensor:
    """The solution x of matrix @ x = right; InputError if the matrix is not positive definite."""
    return torch.cholesky_solve(right, _compute_cholesky_factor(matrix))
