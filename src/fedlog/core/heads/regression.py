"""A Bayesian linear head for a number: the normal-inverse-gamma posterior, exact, from sums.

    y = c + w . phi + noise,   noise ~ N(0, s^2),   w_j | s^2 ~ N(0, s^2 / (strength * n * var(phi_j)))

with a flat prior on c, and on s^2 that of one imagined record of almost no residual. Counts, sums and second moments of
(phi, y) together are all it needs, so a regression is a set of `Moments` with one class whose last feature is y. Where
no strength is given, the one of largest evidence is taken: it too is a function of the sums, and no record is held out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor

from fedlog.core.heads.moments import Detail, Moments
from fedlog.core.heads.shrinkage import lift_noise
from fedlog.errors import InputError

STRENGTHS = tuple(10.0**power for power in np.arange(-8, 4.01, 0.25))
IMAGINED = 1.0  # records behind the prior of the noise
IMAGINED_SHARE = 1e-3  # of the targets' variance, which these have for a residual


def regression_moments(features: Tensor, targets: Tensor) -> Moments:
    """The moments of records with `features` (n, w) and `targets` (n,); they add up over sites."""
    joined = torch.cat([features.to(torch.float64), targets.to(torch.float64)[:, None]], dim=1)
    return Moments.of(joined, torch.zeros(len(joined), dtype=torch.int64), 1, Detail.SECOND)


@dataclass(frozen=True, eq=False)
class LinearPosterior:
    """The posterior of the weights (w,), the constant and the noise; new targets follow Student's distribution."""

    weights: Tensor
    centre: Tensor  # (w,): the mean of the features
    level: float  # the mean of the targets, which is predicted at the centre
    precision_factor: Tensor  # lower triangular L; L L^T / s^2 is the precision of the weights
    records: float
    degrees: float
    noise: float
    """The scale of the noise: s^2 is about its square."""
    strength: float

    @property
    def intercept(self) -> float:
        """What is predicted for features of zeros."""
        return self.level - float(self.weights @ self.centre)

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Location and scale, (n,) each, of the Student distribution of new targets, with `degrees` degrees."""
        phi = features.to(torch.float64) - self.centre
        half = torch.linalg.solve_triangular(self.precision_factor, phi.mT, upper=False)
        spread = (1 + 1 / self.records + half.square().sum(0)).sqrt()
        return self.level + phi @ self.weights, self.noise * spread

    def interval(self, features: Tensor, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Low and high ends, (n,) each, of the central predictive intervals of that level."""
        if not 0 < level < 1:
            raise InputError(f"the level of an interval must lie between 0 and 1, found: {level}")
        location, scale = self.predict(features)
        reach = float(student.ppf((1 + level) / 2, self.degrees)) * scale
        return location - reach, location + reach


def solve_regression(moments: Moments, strength: float | None = None, noise_std: float = 0.0) -> LinearPosterior:
    """The exact posterior from everyone's sums; with privacy noise of that std the scatter is raised to its reach."""
    if strength is not None and not strength > 0:
        raise InputError(f"the strength of the prior must be above 0, found: {strength}")
    total, width = moments.statistics.total, moments.width - 1
    if not total > 0:
        raise InputError("a regression needs records, found: none", hint="noise may have swallowed the count")
    mean = moments.statistics.sums[0, 1:] / total
    scatter = lift_noise(moments.gram() - total * torch.outer(mean, mean), noise_std)
    gram, cross, squares = scatter[:width, :width], scatter[:width, width], max(float(scatter[width, width]), 0.0)
    # A feature without spread gets no weight, whatever its unit: what is left of its scatter is rounding.
    rounding = 1e-12 * moments.gram().diagonal()[:width].abs() + 1e-200
    units = torch.maximum(gram.diagonal(), rounding).sqrt()
    standard = gram / units[:, None] / units
    values, vectors = torch.linalg.eigh(standard)
    values, turned = values.clamp_min(0), vectors.mT @ (cross / units)
    shape = (IMAGINED + max(total - 1, 0.0)) / 2
    prior_rate = IMAGINED_SHARE * squares / total / 2 + 1e-200
    chosen = strength
    if chosen is None:
        chosen = max(STRENGTHS, key=lambda each: _log_evidence(each, values, turned, squares, shape, prior_rate))
    rate = prior_rate + _residual(chosen, values, turned, squares) / 2
    weights = vectors @ (turned / (values + chosen)) / units
    # From the eigenvalues rather than from the scatter itself, which rounding can make indefinite.
    factor: Tensor = units[:, None] * torch.linalg.cholesky((vectors * (values + chosen)) @ vectors.mT)
    return LinearPosterior(
        weights, mean[:width], float(mean[width]), factor, total, 2 * shape, math.sqrt(rate / shape), chosen
    )


def _residual(strength: float, values: Tensor, turned: Tensor, squares: float) -> float:
    """The squares that the weights of that strength leave, the prior's own share included."""
    return max(squares - float((turned.square() / (values + strength)).sum()), 0.0)


def _log_evidence(
    strength: float, values: Tensor, turned: Tensor, squares: float, shape: float, prior_rate: float
) -> float:
    """ln p(targets | strength) up to what does not depend on the strength."""
    fit = float(torch.log(strength / (values + strength)).sum()) / 2
    return fit - shape * math.log(prior_rate + _residual(strength, values, turned, squares) / 2)
