"""DP-SGD: how bodies are trained under noise, and how much noise a budget needs.

In every step each record of the client is drawn with probability `sample_rate` (Poisson sampling). The gradient of each
drawn record is clipped to L2 norm `clip` and rounded towards zero to multiples of `grid`. The sum of these gradients
gets noise of std `noise_multiplier * clip`, and is then divided by the batch size. The number of steps, the sample rate
and the batch size are the same for every client and depend on no record. The trained body never leaves the client, but
its privacy cost is counted as if it were released. So the cost of the statistics can be computed as if everyone knew
the body.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlog.core.clip import clip_row_norms
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.privacy.calibration import list_gaussian_budgets
from fedlog.privacy.discrete import choose_grid
from fedlog.privacy.guarantee import Budget
from fedlog.privacy.mechanisms import Sampler, round_towards_zero
from fedlog.privacy.renyi import (
    compute_dp_sgd_curve,
    compute_gaussian_curve,
    convert_curve_to_epsilon,
    convert_curve_to_log_delta,
)

_MOST_NOISE = 1e4
_PRIVATE_SIDE = 1e-9


@dataclass(frozen=True)
class SgdRoundPlan:
    """The settings of DP-SGD in one round: noise, gradient clip, sample rate and number of steps."""

    noise_multiplier: float
    clip: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise InputError(
                f"the noise multiplier of DP-SGD must be a finite number above 0, found: {self.noise_multiplier!r}"
            )
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise InputError(f"the gradient clip of DP-SGD must be a finite number above 0, found: {self.clip!r}")
        if not 0 < self.sample_rate <= 1:
            raise InputError(f"the sample rate of DP-SGD must be above 0 and at most 1, found: {self.sample_rate!r}")
        if self.steps < 1:
            raise InputError(f"DP-SGD needs at least one step a round, found: {self.steps}")

    @property
    def std(self) -> float:
        """The standard deviation of the noise on the sum of clipped gradients."""
        return self.noise_multiplier * self.clip

    @property
    def grid(self) -> float:
        """The grid step: clipped gradients are rounded to multiples of this number before they are summed."""
        return choose_grid(self.std)

    def clip_gradients(self, gradients: Tensor) -> Tensor:
        """Clip each record's gradient (n, d) and round it to multiples of `grid`; set it to 0 if it is not finite."""
        rows = gradients.detach().to(torch.float64)
        rows = torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, 0.0)
        return round_towards_zero(clip_row_norms(rows, self.clip), self.grid)


def find_training_noise(
    budget: Budget, share: float, sample_rate: float, steps: int, noise_distance: float = 0.0
) -> float:
    """Find the smallest noise multiplier with which these steps of DP-SGD spend at most this share of epsilon.

    `noise_distance` is the distance of the discrete noise from Gaussian noise; see `bound_noise_distance`. This
    distance uses up a part of delta that grows with epsilon. If the part is more than half of delta at the budget's
    epsilon, the steps get `share` of the smaller epsilon at which the part is half of delta (unless there is none).
    """
    epsilon = budget.epsilon
    if noise_distance and budget.delta > 4 * noise_distance:
        epsilon = min(epsilon, math.log(budget.delta / (2 * noise_distance) - 1))

    def compute_excess_epsilon(log_noise: float) -> float:
        curve = compute_dp_sgd_curve(sample_rate, math.exp(log_noise), steps)
        return convert_curve_to_epsilon(curve, budget.delta) - share * epsilon

    return math.exp(_find_root_of_falling_function(compute_excess_epsilon, 0.1, f"{steps} steps of DP-SGD")) * (
        1 + _PRIVATE_SIDE
    )


def find_release_noise_with_training(
    budget: Budget, plan: SgdRoundPlan, rounds: int, releases: int, sensitivity: float, noise_distance: float
) -> float:
    """Find the smallest noise std of the releases that keeps them and all rounds of DP-SGD within the budget."""
    trained = compute_dp_sgd_curve(plan.sample_rate, plan.noise_multiplier, plan.steps * rounds)
    budgets_without_grid = list_gaussian_budgets(budget, noise_distance)
    open_to_releases = [
        kept
        for kept in budgets_without_grid
        if convert_curve_to_log_delta(trained, kept.epsilon) < math.log(kept.delta)
    ]
    if not open_to_releases:
        kept = max(budgets_without_grid, key=lambda one: one.epsilon)
        limit = f"the budget is epsilon {budget.epsilon:g}"
        if kept.epsilon < budget.epsilon:
            limit = f"of the budget's epsilon {budget.epsilon:g}, discrete noise can use at most {kept.epsilon:g}"
        raise InputError(
            f"DP-SGD alone would spend the privacy budget: {plan.steps * rounds} steps at sample rate "
            f"{plan.sample_rate:g} with noise multiplier {plan.noise_multiplier:g} cost epsilon "
            f"{convert_curve_to_epsilon(trained, kept.delta):.4g} at delta {kept.delta:.3g}, but {limit}",
            hint="raise --sgd-noise, use fewer rounds or epochs, or leave --sgd-noise out to have it computed",
        )

    def compute_excess_log_delta(log_multiplier: float) -> float:
        curve = trained + compute_gaussian_curve(releases * math.exp(-2 * log_multiplier))
        return min(convert_curve_to_log_delta(curve, kept.epsilon) - math.log(kept.delta) for kept in open_to_releases)

    multiplier = math.exp(
        _find_root_of_falling_function(compute_excess_log_delta, 0.1, f"{releases} releases and DP-SGD together")
    )
    return multiplier * sensitivity * (1 + _PRIVATE_SIDE)


def _find_root_of_falling_function(falling: Callable[[float], float], smallest: float, what: str) -> float:
    low, high = math.log(smallest), math.log(_MOST_NOISE)
    if falling(high) > 0:
        raise InputError(
            f"even noise of {_MOST_NOISE:g} times the clip does not keep {what} within the privacy budget",
            hint="use fewer rounds or epochs, or a larger epsilon",
        )
    if falling(low) <= 0:
        return low
    from scipy.optimize import brentq  # here: slow to import, and most runs do not need it

    return float(brentq(falling, low, high, xtol=1e-10))


@dataclass(frozen=True)
class SgdTraining:
    """The DP-SGD training of a whole run: the settings of a round, and the number of rounds."""

    plan: SgdRoundPlan
    coordinates: int
    """The number of parameters that are trained."""
    sampler: Callable[[Key], Sampler]
    """Makes a noise sampler from a key."""
    rounds: int = 1


def draw_poisson_sample(records: int, rate: float, key: Key | None) -> Tensor:
    """Draw the sample of one step: positions of records, each drawn independently with probability `rate`.

    Without a key, the system's cryptographic source is used. The guarantee holds only if the sample stays secret.
    """
    if key is not None:
        return torch.nonzero(torch.rand(records, generator=key.torch(), dtype=torch.float64) < rate)[:, 0]
    if rate == 1:
        return torch.arange(records)
    drawn = np.frombuffer(os.urandom(8 * records), dtype=np.uint64)
    # Rounded down, so that a record is never drawn more often than the guarantee assumes.
    return torch.from_numpy(np.flatnonzero(drawn < np.uint64(math.floor(rate * 2**64))))
