"""Shrink covariances towards a multiple of the identity, so that they can be inverted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedlog.errors import InputError


def find_oracle_shrinkage(covariance: Tensor, degrees: float) -> float:
    """The share by which to shrink a covariance (w, w) towards the identity (Chen, Wiesel, Eldar, Hero 2010, eq. 23).

    Oracle-approximating shrinkage needs only the covariance and its degrees of freedom, so sums are enough.
    """
    width = covariance.shape[0]
    squared, trace = float(covariance.square().sum()), float(covariance.trace())
    above = (1 - 2 / width) * squared + trace**2
    below = (degrees + 1 - 2 / width) * (squared - trace**2 / width)
    return 1.0 if below <= 0 else min(1.0, above / below)


def shrink_covariance(covariance: Tensor, degrees: float, share: float | None) -> Tensor:
    """Shrink a covariance: (1 - share) * covariance + share * (mean variance) * identity.

    If `share` is None, `find_oracle_shrinkage` chooses it. If all variances are 0, as with a single record, the result
    is the identity.
    """
    width = covariance.shape[0]
    identity = torch.eye(width, dtype=covariance.dtype)
    if not float(covariance.trace()) > 0:
        return identity
    share = find_oracle_shrinkage(covariance, degrees) if share is None else share
    if not 0 <= share <= 1:
        raise InputError(f"the share of the identity in a covariance must be 0 to 1, found: {share}")
    target = covariance.trace() / width
    return (1 - share) * covariance + share * target * identity


def raise_eigenvalues_to_noise(scatter: Tensor, noise_std: float) -> Tensor:
    """A noisy scatter (w, w), with its eigenvalues raised to at least the size of the noise.

    Noise of std s in every packed entry is a symmetric matrix with a spectral norm of about s * sqrt(2 w), so smaller
    eigenvalues are only noise. Without noise, a scatter has no negative eigenvalues.
    """
    if not noise_std:
        return scatter
    values, vectors = torch.linalg.eigh(scatter)
    floor = noise_std * math.sqrt(2 * scatter.shape[0])
    raised: Tensor = (vectors * values.clamp_min(floor)) @ vectors.mT
    return raised
