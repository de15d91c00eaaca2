"""A Bayesian linear head that predicts a number: the exact normal-inverse-gamma posterior from sums.

    y = c + w . phi + noise,   noise ~ N(0, s^2),   w_j | s^2 ~ N(0, s^2 / (strength * n * var(phi_j)))

with a flat prior on c, and for s^2 the prior of one imagined record with almost no residual. The posterior needs only
counts, sums and second moments of (phi, y), so it is solved from `Moments` with one class and y as the last feature. If
no strength is given, the one with the largest evidence is chosen, also from the sums; no record has to be held out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from fedlog.core.heads.shrinkage import raise_eigenvalues_to_noise
from fedlog.core.stats import Detail, Moments
from fedlog.errors import InputError

STRENGTHS = tuple(10.0**power for power in np.arange(-8, 4.01, 0.25))
INTERVAL_LEVEL = 0.9  # the level of the intervals in metrics
IMAGINED = 1.0  # imagined records in the prior of the noise
IMAGINED_SHARE = 1e-3  # their squared residual, as a share of the targets' variance


def sum_regression_moments(features: Tensor, targets: Tensor) -> Moments:
    """The moments of records with `features` (n, w) and `targets` (n,); moments of several sites can be added."""
    joined = torch.cat([features.to(torch.float64), targets.to(torch.float64)[:, None]], dim=1)
    return Moments.from_records(joined, torch.zeros(len(joined), dtype=torch.int64), 1, Detail.SECOND)


@dataclass(frozen=True, eq=False)
class LinearPosterior:
    """The posterior of the weights, the constant and the noise; new targets then have a Student distribution."""

    weights: Tensor  # (w,): the mean of the weights
    centre: Tensor  # (w,): the mean of the features
    target_mean: float  # the mean of the targets: the prediction for features at the centre
    precision_factor: Tensor  # lower triangular L; L L^T / s^2 is the precision of the weights
    records: float
    degrees: float
    noise: float
    """The scale of the noise, about s."""
    strength: float
    varies: Tensor
    """(w,): whether each feature varies among the records; those that do not are left out of predictions."""

    @property
    def intercept(self) -> float:
        """The prediction for features of zeros."""
        return self.target_mean - float(self.weights @ self.centre)

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The location and scale, (n,) each, of new targets' Student distributions, which have `degrees` of freedom."""
        phi = torch.where(self.varies, features.to(torch.float64) - self.centre, 0.0)
        half = torch.linalg.solve_triangular(self.precision_factor, phi.mT, upper=False)
        spread = (1 + 1 / self.records + half.square().sum(0)).sqrt()
        return self.target_mean + phi @ self.weights, self.noise * spread

    def predict_interval(self, features: Tensor, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The low and the high ends, (n,) each, of the central predictive intervals of that level."""
        if self.records < 2:
            raise InputError(
                f"an interval needs at least 2 records to learn the noise from, found: {self.records:g}",
                hint="fit more records, or use `predict`, which needs no interval",
            )
        return compute_student_interval(*self.predict(features), self.degrees, level)


@dataclass(frozen=True, eq=False)
class NumberHead:
    """The posterior in the form that is sent and used by clients: three arrays for which float32 is precise enough.

    A new target has a Student distribution around c + w . phi, with the squared scale
    scale_at_centre^2 + |A (phi - centre)|^2.
    """

    linear: Tensor
    """(1, 1 + w): the constant c, then the weights w."""
    spread: Tensor
    """(1 + w, w): the centre of the features in row 0, the matrix A in the other rows."""
    noise: Tensor
    """(1, 2): the scale at the centre, and the degrees of freedom of the Student distribution."""

    @staticmethod
    def from_posterior(posterior: LinearPosterior) -> NumberHead:
        """The posterior, converted to the form that is sent."""
        width = len(posterior.weights)
        inverse = torch.linalg.solve_triangular(
            posterior.precision_factor, torch.eye(width, dtype=torch.float64), upper=False
        )
        # The column of a feature without spread would be too large for float32, and it is never needed.
        inverse = torch.where(posterior.varies, posterior.noise * inverse, 0.0)
        spread = torch.cat([posterior.centre[None], inverse])
        at_centre = posterior.noise * math.sqrt(1 + 1 / posterior.records)
        constant = torch.tensor([posterior.intercept], dtype=torch.float64)
        linear = torch.cat([constant, posterior.weights])
        return NumberHead(linear[None], spread, torch.tensor([[at_centre, posterior.degrees]], dtype=torch.float64))

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three arrays, in the order in which they are sent."""
        return self.linear, self.spread, self.noise

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The location and scale, (n,) each, of the Student distributions of new targets."""
        phi = features.to(torch.float64)
        linear, spread, noise = (array.to(torch.float64) for array in self.arrays)
        away = (phi - spread[0]) @ spread[1:].mT
        scale = (noise[0, 0].square() + away.square().sum(1)).sqrt()
        return phi @ linear[0, 1:] + linear[0, 0], scale

    def predict_interval(self, features: Tensor, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The low and the high ends, (n,) each, of the central predictive intervals of that level."""
        return compute_student_interval(*self.predict(features), float(self.noise[0, 1]), level)


def compute_student_interval(location: Tensor, scale: Tensor, degrees: float, level: float) -> tuple[Tensor, Tensor]:
    """The low and the high ends of the central intervals of Student distributions."""
    if not 0 < level < 1:
        raise InputError(f"the level of an interval must be above 0 and below 1, found: {level}")
    reach = float(stdtrit(degrees, (1 + level) / 2)) * scale
    return location - reach, location + reach


def solve_regression(moments: Moments, strength: float | None = None, noise_std: float = 0.0) -> LinearPosterior:
    """The exact posterior from summed moments; `noise_std` is the std of the privacy noise in these moments.

    `strength` is the strength of the prior on the weights; if it is None, the one with the largest evidence is chosen.
    """
    if strength is not None and not strength > 0:
        raise InputError(f"the strength of the prior must be above 0, found: {strength}")
    total, width = moments.statistics.total, moments.width - 1
    if not total > 0:
        raise InputError(
            f"a regression needs a number of records above 0, found: {total:g}",
            hint="add records, or with privacy allow a larger epsilon: noise may be larger than the number of records",
        )
    mean = moments.statistics.sums[0, 1:] / total
    scatter = raise_eigenvalues_to_noise(moments.gram() - total * torch.outer(mean, mean), noise_std)
    gram, cross, squares = scatter[:width, :width], scatter[:width, width], max(float(scatter[width, width]), 0.0)
    # A feature without spread gets no weight: its scatter is only rounding.
    rounding = 1e-12 * moments.gram().diagonal()[:width].abs() + 1e-200
    units = torch.maximum(gram.diagonal(), rounding).sqrt()
    standard = gram / units[:, None] / units
    eigenvalues, vectors = torch.linalg.eigh(standard)
    eigenvalues, rotated_cross = eigenvalues.clamp_min(0), vectors.mT @ (cross / units)
    shape = (IMAGINED + max(total - 1, 0.0)) / 2
    prior_rate = IMAGINED_SHARE * squares / total / 2 + 1e-200
    chosen = strength
    if chosen is None:
        chosen = max(
            STRENGTHS,
            key=lambda each: _compute_log_evidence(each, eigenvalues, rotated_cross, squares, shape, prior_rate),
        )
    rate = prior_rate + _compute_penalised_residual(chosen, eigenvalues, rotated_cross, squares) / 2
    varies = gram.diagonal() > rounding
    weights = torch.where(varies, vectors @ (rotated_cross / (eigenvalues + chosen)) / units, 0.0)
    # From the eigenvalues, because rounding can make the scatter itself indefinite.
    factor: Tensor = units[:, None] * torch.linalg.cholesky((vectors * (eigenvalues + chosen)) @ vectors.mT)
    return LinearPosterior(
        weights,
        mean[:width],
        float(mean[width]),
        factor,
        total,
        2 * shape,
        math.sqrt(rate / shape),
        chosen,
        varies,
    )


def _compute_penalised_residual(strength: float, eigenvalues: Tensor, rotated_cross: Tensor, squares: float) -> float:
    """The minimum over the weights w of (sum of squared residuals) + strength * |w|^2, for standardised features.

    `eigenvalues` are those of the features' scatter X'X, `rotated_cross` is X'y in the basis of its eigenvectors, and
    `squares` is y'y, where y are the targets less their mean.
    """
    return max(squares - float((rotated_cross.square() / (eigenvalues + strength)).sum()), 0.0)


def _compute_log_evidence(
    strength: float, eigenvalues: Tensor, rotated_cross: Tensor, squares: float, shape: float, prior_rate: float
) -> float:
    """The log probability of the targets given this strength, up to a constant that is the same for every strength.

    `shape` is that of the noise's inverse gamma posterior, `prior_rate` the rate of its prior. The other arguments are
    those of `_compute_penalised_residual`.
    """
    fit = float(torch.log(strength / (eigenvalues + strength)).sum()) / 2
    residual = _compute_penalised_residual(strength, eigenvalues, rotated_cross, squares)
    return fit - shape * math.log(prior_rate + residual / 2)


@dataclass(frozen=True)
class NumberMetrics:
    """The metrics of one regression model on one set of records.

    `rmse` is the root mean squared error in the unit of the number, and `inside` the share of numbers inside their
    predicted 90 % intervals. Both are None without records.
    """

    records: int
    rmse: float | None
    inside: float | None


def compute_number_metrics(head: NumberHead | None, features: Tensor, targets: Tensor, unit: float) -> NumberMetrics:
    """The metrics of a regression head on records with `features` (n, w) and scaled `targets` (n,).

    Errors are multiplied by `unit`, which converts them from scaled targets to the user's unit, such as years. If
    `head` is None, the prediction is 0 for every record.
    """
    truth = targets.to(torch.float64)
    if not len(truth):
        return NumberMetrics(0, None, None)
    if head is None:
        return NumberMetrics(len(truth), float(truth.square().mean().sqrt()) * unit, 0.0)
    guess, (low, high) = head.predict(features)[0], head.predict_interval(features, INTERVAL_LEVEL)
    error = float((guess - truth).square().mean().sqrt()) * unit
    return NumberMetrics(len(truth), error, float(((low <= truth) & (truth <= high)).double().mean()))
