"""Plan the noise (its place and its amount), and draw conclusions from noisy statistics: pure functions and values.

All private statistics live on a grid of step `grid`, a power of two: records (or whole messages) are clipped and
rounded *towards zero* to the grid before they are summed, so rounding shortens vectors and adds no sensitivity. The
values stay float64, which holds whole multiples of the grid exactly up to 2^53 steps, so every sum is exact.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedlog.core.clip import Clip, clip_message
from fedlog.core.keys import Key
from fedlog.core.stats import Detail, Moments, Statistics, second_shape
from fedlog.core.triangle import pack
from fedlog.errors import InputError
from fedlog.privacy.accounting import Entropy, NoiseKind
from fedlog.privacy.calibration import paper_sigma, sigma_of
from fedlog.privacy.discrete import (
    STEPS_PER_STD,
    Source,
    discrete_gaussian,
    grid_for,
    rounding_divergence,
    share_divergence,
    steps_of,
)
from fedlog.privacy.guarantee import Budget, Calibration, Trust, Unit


@dataclass(frozen=True)
class Mechanism:
    """A plan of noise: who adds it, how much, and the noise and sensitivity of the release."""

    unit: Unit
    trust: Trust
    sigma: float
    """Per-coordinate std of the noise the guarantee rests on: on the sum, or on each message in local mode."""
    sensitivity: float
    honest_survivors: int = 1
    """H, for distributed noise: a round with fewer honest survivors must fail before anything is unmasked."""
    calibration: Calibration = Calibration.EXACT
    """The formula that sigma was taken from."""

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and self.sensitivity > 0 and math.isfinite(self.sigma * self.sensitivity)):
            raise InputError(f"sigma and sensitivity must be finite and above 0: {self.sigma!r}, {self.sensitivity!r}")
        if self.trust is not Trust.DISTRIBUTED and self.honest_survivors != 1:
            raise InputError(
                f"only distributed noise is divided among honest survivors: {self.honest_survivors} under {self.trust}"
            )
        if self.trust is Trust.DISTRIBUTED and self.honest_survivors < 2:
            raise InputError(
                f"distributed noise needs other honest clients to hide behind: {self.honest_survivors} honest survivor",
                hint="at least 2, and 3 for a secure sum",
            )

    @property
    def client_std(self) -> float:
        """The std of what one client adds to its message before sending it."""
        if self.trust is Trust.CENTRAL:
            return 0.0
        return self.sigma / math.sqrt(self.shares)

    @property
    def shares(self) -> int:
        """How many draws the guarantee rests on: an honest survivor is hidden by the draws of the others."""
        return count_hiding_shares(self.trust, self.honest_survivors)

    @property
    def server_std(self) -> float:
        """The std of what the server adds to the sum of messages."""
        return self.sigma if self.trust is Trust.CENTRAL else 0.0

    def std_of_sum(self, clients: int) -> float:
        """The std of all noise in the sum of this many clients' messages: what accuracy depends on."""
        return math.hypot(self.server_std, math.sqrt(clients) * self.client_std)

    @property
    def grid(self) -> float:
        """The grid on which every party of this mechanism works."""
        return grid_for(max(self.client_std, self.server_std))


class Sampler(Protocol):
    """A way to draw noise, and what may be said of it."""

    @property
    def kind(self) -> NoiseKind: ...

    @property
    def entropy(self) -> Entropy: ...

    @property
    def grid(self) -> float | None: ...

    def draw(self, shape: torch.Size, std: float) -> Tensor:
        """float64 noise of that shape, at least `std` wide."""


@dataclass(frozen=True)
class FloatSampler:
    """Fast Gaussian noise from a key, the same in every run: for simulation only, it hides nothing."""

    key: Key
    kind: NoiseKind = field(default=NoiseKind.FLOAT, init=False)
    entropy: Entropy = field(default=Entropy.SEED, init=False)
    grid: None = field(default=None, init=False)

    def draw(self, shape: torch.Size, std: float) -> Tensor:
        """float64 noise of that shape; the same in every call, so each message needs a sampler with its own key."""
        return std * torch.randn(shape, generator=self.key.torch(), dtype=torch.float64)


@dataclass(frozen=True)
class DiscreteSampler:
    """Exact discrete Gaussian noise on a grid, from the system's cryptographic source."""

    grid: float
    source: Source = os.urandom
    kind: NoiseKind = field(default=NoiseKind.DISCRETE, init=False)

    @property
    def entropy(self) -> Entropy:
        """The source of randomness: any other than the system's counts as a seed."""
        return Entropy.SYSTEM if self.source is os.urandom else Entropy.SEED

    def draw(self, shape: torch.Size, std: float) -> Tensor:
        """float64 noise of that shape, whole multiples of the grid."""
        steps = discrete_gaussian(shape.numel(), steps_of(std, self.grid), self.source)
        return torch.from_numpy(steps).to(torch.float64).reshape(shape) * self.grid


def sensitivity_to_client(norm: float, trust: Trust) -> float:
    """How far one client can move what is released, its whole message clipped to L2 norm `norm`.

    A sum loses or gains one message. In local mode one message is replaced by another, so it moves twice as far.
    """
    return 2 * norm if trust is Trust.LOCAL else norm


def count_hiding_shares(trust: Trust, honest_survivors: int) -> int:
    """How many noise draws hide a client from any other party: an honest client knows its own draw."""
    return max(1, honest_survivors - 1) if trust is Trust.DISTRIBUTED else 1


def planned_closeness(releases: int, coordinates: int, shares: int = 1, wrap_probability: float = 0.0) -> float:
    """An upper bound on the distance that grid and modulus add to a plan; see `accounting.closeness`."""
    wraps = releases * wrap_probability
    sums = releases * coordinates * math.expm1(share_divergence(float(STEPS_PER_STD), shares))
    return wraps + sums + math.sqrt(releases * coordinates * rounding_divergence(STEPS_PER_STD) / 2)


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
    """The mechanism with the least noise that keeps `releases` releases within the budget.

    Calibration `paper` uses Theorem 4's formula: it is checked against the exact loss when the run starts releasing,
    and adds too much noise at every usual budget. Mode `paper` promises nothing with either.
    """
    if calibration is Calibration.PAPER:
        sigma = paper_sigma(budget, releases, sensitivity)
    else:
        shares = count_hiding_shares(trust, honest_survivors)
        closeness = planned_closeness(releases, coordinates, shares, wrap_probability)
        sigma = sigma_of(budget, releases, sensitivity, closeness)
    return Mechanism(unit, trust, sigma, sensitivity, honest_survivors, calibration)


def record_statistics(features: Tensor, labels: Tensor, n_class: int, clip: Clip, grid: float) -> Statistics:
    """The statistics of records, each clipped and rounded towards zero to the grid before they are summed.

    `features` (n, m - 1) without the constant. Features that are not finite count as 0: an error that depends on a
    record would be a release of its own.
    """
    if grid > 1:
        raise InputError(f"the grid must not be coarser than the constant feature 1: {grid:g}")
    clipped = clip(torch.nan_to_num(features.detach().to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0))
    return Statistics.of(round_towards_zero(clipped, grid), labels, n_class)


def record_moments(features: Tensor, labels: Tensor, n_class: int, clip: Clip, grid: float, detail: Detail) -> Moments:
    """First and second moments of records, each record's clipped and rounded towards zero before they are summed."""
    first = record_statistics(features, labels, n_class, clip, grid)
    shape = second_shape(detail, n_class, features.shape[1])
    if shape is None:
        return Moments(first)
    finite = torch.nan_to_num(features.detach().to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)
    second = torch.zeros(shape, dtype=torch.float64)
    for phi, label in zip(round_towards_zero(clip(finite), grid), labels.tolist(), strict=True):
        own = phi.square() if detail is Detail.SQUARES else pack(torch.outer(phi, phi))
        second[0 if detail is Detail.SECOND else label] += round_towards_zero(own, grid)
    return Moments(first, detail, second)


def client_message(sums: Tensor, norm: float, grid: float) -> Tensor:
    """A client's whole message, clipped to L2 norm `norm` and rounded towards zero to the grid."""
    finite = torch.nan_to_num(sums.detach().to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return round_towards_zero(clip_message(finite, norm), grid)


def round_towards_zero(values: Tensor, grid: float) -> Tensor:
    """The values as multiples of the grid, none farther from zero than before."""
    return torch.trunc(values / grid) * grid


def add_noise(sums: Tensor, std: float, sampler: Sampler) -> Tensor:
    """The sums with fresh noise of that std in every entry, classes without records included."""
    return sums.to(torch.float64) + sampler.draw(sums.shape, std)
