"""Plan the noise of a run, clip statistics, and add noise to them.

All private statistics are multiples of `grid`, a power of two: records (or whole messages) are clipped and rounded
*towards zero* to the grid before they are summed. So rounding only shortens vectors, and adds no sensitivity. The
values are float64, which holds multiples of the grid exactly up to 2^53 steps, so every sum is exact.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedlog.core.clip import Clip, clip_client_sums
from fedlog.core.keys import Key
from fedlog.core.packed_matrix import pack_triangle
from fedlog.core.stats import Detail, Moments, Statistics, find_second_moments_shape
from fedlog.errors import InputError
from fedlog.privacy.accounting import NoiseKind, RandomSource
from fedlog.privacy.calibration import compute_sigma_by_paper_formula, find_smallest_sigma
from fedlog.privacy.discrete import (
    STEPS_PER_STD,
    RandomBytes,
    bound_rounding_divergence,
    bound_share_divergence,
    choose_grid,
    count_grid_steps,
    draw_discrete_gaussian,
)
from fedlog.privacy.guarantee import Budget, Calibration, Trust, Unit


@dataclass(frozen=True)
class Mechanism:
    """The noise of each release: who adds it, its standard deviation, and the sensitivity that it covers."""

    unit: Unit
    trust: Trust
    sigma: float
    """Std, per coordinate, of the noise on which the guarantee rests: on the sum or, if local, on each message."""
    sensitivity: float
    honest_survivors: int = 1
    """For distributed noise: a round with fewer honest survivors must fail before anything is unmasked."""
    calibration: Calibration = Calibration.EXACT
    """The formula that gave sigma."""

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and self.sensitivity > 0 and math.isfinite(self.sigma * self.sensitivity)):
            raise InputError(
                f"sigma and sensitivity must be finite and above 0, found: sigma {self.sigma!r}, sensitivity "
                f"{self.sensitivity!r}"
            )
        if self.trust is not Trust.DISTRIBUTED and self.honest_survivors != 1:
            raise InputError(
                f"honest clients that do not drop out can be required only with distributed noise, found: "
                f"{self.honest_survivors} with {self.trust} noise",
                hint="leave out --honest, or use --trust distributed",
            )
        if self.trust is Trust.DISTRIBUTED and self.honest_survivors < 2:
            raise InputError(
                "distributed noise needs at least 2 honest clients that do not drop out, found: "
                f"{self.honest_survivors}",
                hint="--honest 3: each client is hidden by the noise of the others",
            )

    @property
    def client_std(self) -> float:
        """The std of the noise that one client adds to its message."""
        if self.trust is Trust.CENTRAL:
            return 0.0
        return self.sigma / math.sqrt(self.noise_shares)

    @property
    def noise_shares(self) -> int:
        """The number of noise shares, drawn by different clients, on which the guarantee rests."""
        return count_noise_shares(self.trust, self.honest_survivors)

    @property
    def server_std(self) -> float:
        """The std of the noise that the server adds to the sum of messages."""
        return self.sigma if self.trust is Trust.CENTRAL else 0.0

    def compute_std_of_sum(self, clients: int) -> float:
        """Compute the std of all noise in the sum of the messages of this many clients."""
        return math.hypot(self.server_std, math.sqrt(clients) * self.client_std)

    @property
    def grid(self) -> float:
        """The grid step: all values and all noise are multiples of this number."""
        return choose_grid(max(self.client_std, self.server_std))


class Sampler(Protocol):
    """The interface of an object that draws noise, with the properties that the release log records."""

    @property
    def kind(self) -> NoiseKind: ...

    @property
    def entropy(self) -> RandomSource: ...

    @property
    def grid(self) -> float | None: ...

    def draw(self, shape: torch.Size, std: float) -> Tensor:
        """Draw float64 noise of this shape, with a standard deviation of at least `std`."""


@dataclass(frozen=True)
class FloatSampler:
    """Draws fast Gaussian noise from a key: for simulation only, since whoever knows the seed can subtract it."""

    key: Key
    kind: NoiseKind = field(default=NoiseKind.FLOAT, init=False)
    entropy: RandomSource = field(default=RandomSource.SEED, init=False)
    grid: None = field(default=None, init=False)

    def draw(self, shape: torch.Size, std: float) -> Tensor:
        """Draw float64 noise of this shape; every call draws the same noise, so each message needs its own key."""
        return std * torch.randn(shape, generator=self.key.torch(), dtype=torch.float64)


@dataclass(frozen=True)
class DiscreteSampler:
    """Draws exact discrete Gaussian noise on a grid, from the system's cryptographic source."""

    grid: float
    source: RandomBytes = os.urandom
    kind: NoiseKind = field(default=NoiseKind.DISCRETE, init=False)

    @property
    def entropy(self) -> RandomSource:
        """Where the randomness comes from; any source except the system's counts as a seed."""
        return RandomSource.SYSTEM if self.source is os.urandom else RandomSource.SEED

    def draw(self, shape: torch.Size, std: float) -> Tensor:
        """Draw float64 noise of this shape, in multiples of the grid."""
        steps = draw_discrete_gaussian(shape.numel(), count_grid_steps(std, self.grid), self.source)
        return torch.from_numpy(steps).to(torch.float64).reshape(shape) * self.grid


def compute_client_sensitivity(norm: float, trust: Trust) -> float:
    """Compute how far (in L2 norm) one client can change a release if its message is clipped to norm `norm`.

    With local noise, one message of the client is replaced by another, so the change can be twice the norm. With
    central noise a message is added to a sum or removed, and with distributed noise it is replaced by zeros: the change
    is at most the norm.
    """
    return 2 * norm if trust is Trust.LOCAL else norm


def count_noise_shares(trust: Trust, honest_survivors: int) -> int:
    """Count the shares of noise on which the guarantee rests: in a secure sum one less than the honest survivors.

    In a secure sum every client adds one share. A survivor that wants to learn about another client can subtract its
    own share from the sum, so only the shares of the other honest survivors count. Noise that the server or a client
    adds alone is one share.
    """
    return max(1, honest_survivors - 1) if trust is Trust.DISTRIBUTED else 1


def bound_noise_distance(releases: int, coordinates: int, shares: int = 1, wrap_probability: float = 0.0) -> float:
    """Bound the total-variation distance between planned discrete noise and exact Gaussian noise.

    `releases` is the number of releases, or the number of steps of DP-SGD.
    """
    wraps = releases * wrap_probability
    sums = releases * coordinates * math.expm1(bound_share_divergence(float(STEPS_PER_STD), shares))
    return wraps + sums + math.sqrt(releases * coordinates * bound_rounding_divergence(STEPS_PER_STD) / 2)


def plan_noise(
    budget: Budget,
    *,
    releases: int,
    sensitivity: float,
    coordinates: int,
    unit: Unit,
    trust: Trust,
    calibration: Calibration = Calibration.EXACT,
    honest_survivors: int = 1,
    wrap_probability: float = 0.0,
) -> Mechanism:
    """Plan the mechanism with the least noise that keeps this number of releases within the budget.

    Calibration `paper` uses the formula of the FedLog paper's Theorem 4, which adds too much noise at every usual
    budget; before each release the exact privacy loss is still checked. Unit `paper` has no guarantee with either
    calibration.
    """
    if calibration is Calibration.PAPER:
        sigma = compute_sigma_by_paper_formula(budget, releases, sensitivity)
    else:
        shares = count_noise_shares(trust, honest_survivors)
        noise_distance = bound_noise_distance(releases, coordinates, shares, wrap_probability)
        sigma = find_smallest_sigma(budget, releases, sensitivity, noise_distance)
    return Mechanism(unit, trust, sigma, sensitivity, honest_survivors, calibration)


def sum_clipped_moments(
    features: Tensor, labels: Tensor, n_class: int, clip: Clip, grid: float, detail: Detail = Detail.MEANS
) -> Moments:
    """Sum the moments of records; each record is clipped and rounded towards zero to the grid before it is added.

    `features` (n, m - 1) are without the constant feature 1, which is added here. Features that are not finite count as
    0: an error that depends on a record would reveal something about that record.
    """
    if grid > 1:
        raise InputError(f"the grid step must be at most 1 (the value of the constant feature), found: {grid:g}")
    clipped = round_towards_zero(clip(_replace_not_finite_by_zero(features)), grid)
    first = Statistics.from_records(clipped, labels, n_class)
    shape = find_second_moments_shape(detail, n_class, features.shape[1])
    if shape is None:
        return Moments(first)
    second = torch.zeros(shape, dtype=torch.float64)
    for phi, label in zip(clipped, labels.tolist(), strict=True):
        own = phi.square() if detail is Detail.SQUARES else pack_triangle(torch.outer(phi, phi))
        second[0 if detail is Detail.SECOND else label] += round_towards_zero(own, grid)
    return Moments(first, detail, second)


def clip_client_message(sums: Tensor, norm: float, grid: float) -> Tensor:
    """Clip a client's whole message to L2 norm `norm`, and round it towards zero to the grid."""
    return round_towards_zero(clip_client_sums(_replace_not_finite_by_zero(sums), norm), grid)


def _replace_not_finite_by_zero(values: Tensor) -> Tensor:
    return torch.nan_to_num(values.detach().to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)


def round_towards_zero(values: Tensor, grid: float) -> Tensor:
    """Round each value towards zero to a multiple of the grid step."""
    return torch.trunc(values / grid) * grid


def add_noise(sums: Tensor, std: float, sampler: Sampler) -> Tensor:
    """Return the sums with new noise of this std in every entry, also for classes without records."""
    return sums.to(torch.float64) + sampler.draw(sums.shape, std)
