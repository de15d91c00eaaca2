"""DP-SGD as data: how a body is trained under noise, and the event that a round of it leaves in the record.

In every step each record of the client is drawn with probability `sample_rate` (Poisson sampling), the gradient of each
drawn record is clipped to L2 norm `clip` and rounded towards zero to the grid, they are summed, and noise of std
`noise_multiplier * clip` is added. Number of steps, rate and divisor are the same for every client and depend on no
record. The trained body counts as an output, although it never leaves: statistics of a given body then move by no more
than one record's own, and everything composes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.privacy.accounting import Noise, Training
from fedlog.privacy.discrete import STEPS_PER_STD, grid_for, rounding_divergence
from fedlog.privacy.guarantee import Budget, Trust
from fedlog.privacy.mechanisms import Sampler, towards_zero
from fedlog.privacy.renyi import curve_delta, curve_epsilon, gaussian_curve, sampled_gaussian_curve

_MOST_NOISE = 1e4
_PRIVATE_SIDE = 1e-9


@dataclass(frozen=True)
class SgdPlan:
    """One round's training of a body."""

    noise_multiplier: float
    clip: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise InputError(f"the noise of DP-SGD must be a finite number above 0: {self.noise_multiplier!r}")
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise InputError(f"the gradient clip of DP-SGD must be a finite number above 0: {self.clip!r}")
        if not 0 < self.sample_rate <= 1:
            raise InputError(f"the sample rate of DP-SGD must lie in (0, 1]: {self.sample_rate!r}")
        if self.steps < 1:
            raise InputError(f"DP-SGD needs at least one step a round: {self.steps}")

    @property
    def std(self) -> float:
        """Of the noise on the sum of clipped gradients."""
        return self.noise_multiplier * self.clip

    @property
    def grid(self) -> float:
        """On which gradients are summed."""
        return grid_for(self.std)

    def clipped(self, gradients: Tensor) -> Tensor:
        """The rows (n, d) as they enter the sum: none longer than the clip; a row that is not finite counts as 0."""
        rows = gradients.detach().to(torch.float64)
        rows = torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, 0.0)
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        shortened = rows * (self.clip * (1 - 1e-12) / lengths.clamp_min(self.clip))
        return towards_zero(shortened, self.grid)

    def event(self, *, round: int, exchange: str, trust: Trust, coordinates: int, sampler: Sampler) -> Training:  # noqa: A002
        """What to record before anything that depends on the trained body leaves."""
        return Training(
            round=round,
            exchange=exchange,
            trust=trust,
            noise=sampler.kind,
            entropy=sampler.entropy,
            noise_multiplier=self.noise_multiplier,
            clip=self.clip,
            sample_rate=self.sample_rate,
            steps=self.steps,
            coordinates=coordinates,
            grid=self.grid if sampler.kind is Noise.DISCRETE else None,
        )


def noise_for_share(budget: Budget, share: float, sample_rate: float, steps: int) -> float:
    """The smallest noise multiplier with which that many steps alone stay within a share of epsilon."""

    def excess(log_noise: float) -> float:
        curve = sampled_gaussian_curve(sample_rate, math.exp(log_noise), steps)
        return curve_epsilon(curve, budget.delta) - share * budget.epsilon

    return math.exp(_falling_root(excess, 0.1, f"{steps} steps of DP-SGD")) * (1 + _PRIVATE_SIDE)


def sigma_beside_training(
    budget: Budget, plan: SgdPlan, trainings: int, releases: int, sensitivity: float, closeness: float
) -> float:
    """The smallest std with which the releases, together with all the training, stay within the budget."""
    trained = sampled_gaussian_curve(plan.sample_rate, plan.noise_multiplier, plan.steps * trainings)
    left = budget.delta - (1 + math.exp(min(budget.epsilon, 700.0))) * closeness
    if left <= 0 or curve_delta(trained, budget.epsilon) >= left:
        raise InputError(
            f"the training alone would spend the budget: {plan.steps * trainings} steps at rate {plan.sample_rate:g} "
            f"with noise {plan.noise_multiplier:g} have epsilon {curve_epsilon(trained, budget.delta):.4g} at delta "
            f"{budget.delta:g}, and {budget.epsilon:g} is all there is",
            hint="more --sgd-noise, fewer rounds or epochs, or leave --sgd-noise out to have it computed",
        )

    def excess(log_multiplier: float) -> float:
        mu_squared = releases * math.exp(-2 * log_multiplier)
        return math.log(curve_delta(trained + gaussian_curve(mu_squared), budget.epsilon)) - math.log(left)

    multiplier = math.exp(_falling_root(excess, 0.1, f"{releases} releases beside DP-SGD"))
    return multiplier * sensitivity * (1 + _PRIVATE_SIDE)


def _falling_root(falling: Callable[[float], float], smallest: float, what: str) -> float:
    low, high = math.log(smallest), math.log(_MOST_NOISE)
    if falling(high) > 0:
        raise InputError(f"no noise up to {_MOST_NOISE:g} times the clip keeps {what} within the budget")
    if falling(low) <= 0:
        return low
    return float(brentq(falling, low, high, xtol=1e-10))


@dataclass(frozen=True)
class TrainingPlan:
    """All training of a run: so many rounds of it, of bodies with so many parameters."""

    plan: SgdPlan
    trainings: int
    coordinates: int

    @property
    def planned_closeness(self) -> float:
        """The distance that the grid will cost at most; see `accounting.closeness`."""
        steps = self.trainings * self.plan.steps
        return math.sqrt(steps * self.coordinates * rounding_divergence(STEPS_PER_STD) / 2)

    def sigma_beside(self, budget: Budget, releases: int, sensitivity: float, closeness: float) -> float:
        """The smallest std with which the releases, together with all the training, stay within the budget."""
        return sigma_beside_training(budget, self.plan, self.trainings, releases, sensitivity, closeness)


@dataclass(frozen=True)
class SgdTraining:
    """DP-SGD at work: the plan, the size of a body, and where noise comes from."""

    plan: SgdPlan
    coordinates: int
    sampler: Callable[[Key], Sampler]


def poisson_sample(records: int, rate: float, key: Key | None) -> Tensor:
    """Positions of the records in one step's sample, each with that probability.

    Without a key they come from the system's source. The amplification by sampling counts on nobody knowing the sample.
    """
    if key is not None:
        return torch.nonzero(torch.rand(records, generator=key.torch(), dtype=torch.float64) < rate)[:, 0]
    if rate == 1:
        return torch.arange(records)
    drawn = np.frombuffer(os.urandom(8 * records), dtype=np.uint64)
    # Rounded down: a record is drawn no more often than accounted for.
    return torch.from_numpy(np.flatnonzero(drawn < np.uint64(math.floor(rate * 2**64))))
