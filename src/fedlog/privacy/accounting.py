"""What a run has released, as data, and what that adds up to: nothing is guessed, nothing is forgotten.

A run appends one `Release` for each noisy object before the object leaves, the opening exchange included. `spent`
reads the list later, `allow` before the next release. In local mode one release stands for one message of every
client that took part: a record lives at one client, so its releases are the run's exchanges.

No amplification by sampling is claimed. Choices made by looking at private data (a grid of settings, when to stop)
are releases that nobody recorded, and are not covered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from fedlog.errors import InputError, RunError
from fedlog.privacy.calibration import delta_of, epsilon_of, paper_epsilon
from fedlog.privacy.discrete import rounding_divergence, share_divergence
from fedlog.privacy.guarantee import Budget, Guarantee, Trust, Unit


class Noise(StrEnum):
    """How the noise of a release was drawn."""

    FLOAT = "float-gaussian"
    """Floating-point draws from a seed: for simulation only."""
    DISCRETE = "discrete-gaussian"
    """Exact draws on an integer grid."""


class Entropy(StrEnum):
    """Where the randomness of a release came from."""

    SYSTEM = "system"
    SEED = "seed"


@dataclass(frozen=True)
class Release:
    """One noisy object that left: enough to account for it without asking anyone."""

    round: int
    """0 is the opening exchange."""
    exchange: str
    unit: Unit
    trust: Trust
    noise: Noise
    entropy: Entropy
    sigma: float
    """Standard deviation, per coordinate, of the noise that the guarantee rests on."""
    sensitivity: float
    coordinates: int
    grid: float | None = None
    """The step of the integer grid; None for floating-point noise."""
    shares: int = 1
    """H: the noise is the sum of this many clients' draws."""
    wrap_probability: float = 0.0
    """The chance that the sum with its noise left the range of the secure sum's modulus."""

    def __post_init__(self) -> None:
        where = f"release of round {self.round}, exchange {self.exchange!r}"
        for name in ("sigma", "sensitivity"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{where}: {name} must be a finite number above 0: {value!r}")
        if self.round < 0 or self.coordinates < 1 or self.shares < 1:
            raise InputError(f"{where}: round, coordinates or shares out of range: {self}")
        if not 0 <= self.wrap_probability < 1:
            raise InputError(f"{where}: wrap_probability must lie in [0, 1): {self.wrap_probability!r}")
        if (self.noise is Noise.DISCRETE) != (self.grid is not None):
            raise InputError(f"{where}: discrete noise has a grid, floating-point noise has none: {self.grid!r}")
        if self.grid is not None and not (math.isfinite(self.grid) and self.grid > 0):
            raise InputError(f"{where}: grid must be a finite number above 0: {self.grid!r}")
        if self.shares > 1 and self.trust is not Trust.DISTRIBUTED:
            raise InputError(f"{where}: only distributed noise has shares: {self.shares}")

    @property
    def private(self) -> bool:
        """Whether the noise can hide anything: exact draws that nobody can repeat."""
        return self.noise is Noise.DISCRETE and self.entropy is Entropy.SYSTEM


@dataclass(frozen=True)
class Spending:
    """What a run has spent after each release, and what may be said of the whole."""

    releases: tuple[Release, ...]
    epsilons: tuple[float, ...]
    """After each release; what Theorem 4's formula would say, in mode `paper`."""
    guarantee: Guarantee | None
    """None when nothing was released."""
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class _Loss:
    """The privacy loss of some releases together: `+` composes them, adaptively or not."""

    mu_squared: float = 0.0
    divergence: float = 0.0
    distance: float = 0.0

    @staticmethod
    def of(release: Release) -> _Loss:
        mu_squared = (release.sensitivity / release.sigma) ** 2
        if release.grid is None:
            return _Loss(mu_squared, distance=release.wrap_probability)
        steps = release.sigma / release.grid
        per_coordinate = math.expm1(share_divergence(steps / math.sqrt(release.shares), release.shares))
        return _Loss(
            mu_squared,
            divergence=release.coordinates * rounding_divergence(steps),
            distance=release.wrap_probability + release.coordinates * per_coordinate,
        )

    def __add__(self, other: _Loss) -> _Loss:
        return _Loss(
            self.mu_squared + other.mu_squared, self.divergence + other.divergence, self.distance + other.distance
        )

    @property
    def closeness(self) -> float:
        """A bound on the total-variation distance between the noise as drawn and the Gaussian of the analysis.

        Divergences add over coordinates and releases, and Pinsker turns their sum into a distance; shares and wraps
        are distances themselves.
        """
        return self.distance + math.sqrt(self.divergence / 2)

    def epsilon(self, unit: Unit, delta: float) -> float:
        mu = math.sqrt(self.mu_squared)
        return paper_epsilon(mu, delta) if unit is Unit.PAPER else epsilon_of(mu, delta, self.closeness)

    def within(self, unit: Unit, budget: Budget) -> bool:
        if unit is Unit.PAPER and self.epsilon(unit, budget.delta) <= budget.epsilon * (1 + 1e-9):
            return True  # the formula it was calibrated by; it promises nothing with the exact one either
        # In delta, where nothing has to be inverted, so that a plan of k releases is allowed exactly k.
        cost = (1 + math.exp(min(budget.epsilon, 700.0))) * self.closeness
        return delta_of(budget.epsilon, math.sqrt(self.mu_squared)) + cost <= budget.delta


def closeness(releases: Sequence[Release]) -> float:
    """A bound on the total-variation distance between the recorded noise and the Gaussian of the analysis."""
    return sum((_Loss.of(release) for release in releases), _Loss()).closeness


def spent(releases: Sequence[Release], delta: float) -> Spending:
    """The epsilon at `delta` after each release, exactly composed, and the guarantee of them all."""
    Budget(1.0, delta)
    if not releases:
        return Spending((), (), None, ())
    unit, trust = _one_promise(releases)
    losses = accumulate(_Loss.of(release) for release in releases)
    epsilons = tuple(loss.epsilon(unit, delta) for loss in losses)
    last = epsilons[-1]
    guarantee = Guarantee(
        epsilon=None if unit is Unit.PAPER or last == math.inf else last,
        delta=delta,
        unit=unit,
        trust=trust,
        releases=len(releases),
        nominal_epsilon=last if unit is Unit.PAPER else None,
    )
    return Spending(tuple(releases), epsilons, guarantee, _caveats(releases))


def allow(releases: Sequence[Release], upcoming: Release, budget: Budget) -> tuple[Release, ...]:
    """The releases with the upcoming one, if the budget covers them all; RunError if not.

    A run asks before each release, with everything that was ever recorded for it, so resuming it starts no new budget.
    """
    together = (*releases, upcoming)
    unit, _ = _one_promise(together)
    loss = sum((_Loss.of(release) for release in together), _Loss())
    if not loss.within(unit, budget):
        after = loss.epsilon(unit, budget.delta)
        raise RunError(
            f"the privacy budget does not cover another release: round {upcoming.round} would bring epsilon to "
            f"{after:.6g} of {budget.epsilon:g} at delta {budget.delta:g}, after {len(releases)} releases",
            hint="plan the number of releases before the run starts: the noise is set for it",
        )
    return together


def _one_promise(releases: Sequence[Release]) -> tuple[Unit, Trust]:
    promises = {(release.unit, release.trust) for release in releases}
    if len(promises) > 1:
        found = ", ".join(sorted(f"{unit}/{trust}" for unit, trust in promises))
        raise InputError(f"releases of one run must protect one unit with one mechanism: {found}")
    return promises.pop()


def _caveats(releases: Sequence[Release]) -> tuple[str, ...]:
    found = []
    if any(release.noise is Noise.FLOAT for release in releases):
        found.append("simulation only: floating-point noise can be told apart from Gaussian noise by its low bits")
    if any(release.entropy is Entropy.SEED for release in releases):
        found.append("the noise is not private: it came from a fixed seed, and whoever knows the seed can subtract it")
    return tuple(found)
