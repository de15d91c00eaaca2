"""The recorded releases of a run, and the total privacy cost of all of them.

A run records an event before anything leaves: a `Release` for each noisy message or noisy sum, also for those of the
opening (the exchange before round 1), and a `TrainingRound` for each round of DP-SGD. An `UnboundedLoss` stands for
something that left without noise. `append_within_budget` checks the budget before each event; `compute_spending` adds
up what the recorded events cost. With local noise, one `Release` stands for the messages of all clients in an exchange:
each record is at one client, so only one of these messages depends on it.

A promise is a pair of protected unit and trust model. All events of a run have the same promise.

If all releases are Gaussian, they are composed exactly. If there is also DP-SGD, everything is composed by Rényi
divergences, which give an upper bound. Sampling clients does not lower the computed cost; DP-SGD's sampling of
records does, in its Rényi divergences. Choices made by looking at private data (a grid of settings, when to stop) are
releases that nobody recorded, and are not covered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import ClassVar

from fedlog.errors import InputError, RunError
from fedlog.privacy.calibration import (
    compute_delta,
    compute_delta_used_by_grid,
    compute_epsilon,
    compute_epsilon_by_paper_formula,
)
from fedlog.privacy.discrete import bound_rounding_divergence, bound_share_divergence
from fedlog.privacy.guarantee import Budget, Calibration, Guarantee, Trust, Unit
from fedlog.privacy.renyi import (
    Curve,
    compute_dp_sgd_curve,
    compute_gaussian_curve,
    convert_curve_to_delta,
    convert_curve_to_epsilon,
)


class NoiseKind(StrEnum):
    """How the noise of a recorded release was drawn: in floating point, or on an integer grid."""

    FLOAT = "float-gaussian"
    """Floating-point draws from a seed: for simulation only."""
    DISCRETE = "discrete-gaussian"
    """Exact draws on an integer grid."""


class RandomSource(StrEnum):
    """Where the randomness of a release's noise came from: the system's cryptographic source, or a seed."""

    SYSTEM = "system"
    SEED = "seed"


@dataclass(frozen=True)
class Release:
    """One noisy message or noisy sum that was sent, with all that is needed to compute its privacy cost."""

    round: int
    """The round; 0 is the opening exchange."""
    exchange: str
    unit: Unit
    trust: Trust
    noise: NoiseKind
    entropy: RandomSource
    sigma: float
    """Standard deviation, per coordinate, of the noise that the guarantee rests on."""
    sensitivity: float
    coordinates: int
    grid: float | None = None
    """The step of the integer grid; None for floating-point noise."""
    shares: int = 1
    """How many clients' draws the noise is the sum of."""
    wrap_probability: float = 0.0
    """The chance that the noisy sum is outside the range of the secure sum's numbers, and wraps around."""
    calibration: Calibration = Calibration.EXACT
    """The formula that gave sigma; a run with `--privacy paper` is checked by the same formula."""
    kind: ClassVar[str] = "release"

    def __post_init__(self) -> None:
        where = f"release of round {self.round}, exchange {self.exchange!r}"
        for name in ("sigma", "sensitivity"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{where}: {name} must be a finite number above 0, found: {value!r}")
        if self.round < 0 or self.coordinates < 1 or self.shares < 1:
            found = f"round {self.round}, coordinates {self.coordinates}, shares {self.shares}"
            raise InputError(f"{where}: expected round >= 0, coordinates >= 1 and shares >= 1, found: {found}")
        if not 0 <= self.wrap_probability < 1:
            raise InputError(f"{where}: expected 0 <= wrap_probability < 1, found: {self.wrap_probability!r}")
        _check_grid(where, self.noise, self.grid)
        if self.shares > 1 and self.trust is not Trust.DISTRIBUTED:
            raise InputError(
                f"{where}: expected one share of noise unless the noise is distributed, found: {self.shares} shares"
            )


def _check_grid(where: str, noise: NoiseKind, grid: float | None) -> None:
    if noise is NoiseKind.DISCRETE and grid is None:
        raise InputError(f"{where}: expected the grid step of the discrete noise, found none")
    if noise is not NoiseKind.DISCRETE and grid is not None:
        raise InputError(f"{where}: expected no grid step for floating-point noise, found: {grid!r}")
    if grid is not None and not (math.isfinite(grid) and grid > 0):
        raise InputError(f"{where}: the grid step must be a finite number above 0, found: {grid!r}")


@dataclass(frozen=True)
class TrainingRound:
    """One round of DP-SGD at every client. It costs as much privacy as if the trained body were released."""

    round: int
    exchange: str
    trust: Trust
    noise: NoiseKind
    entropy: RandomSource
    noise_multiplier: float
    clip: float
    sample_rate: float
    """The chance of each record to be in the sample of a step, independently of the others."""
    steps: int
    coordinates: int
    grid: float | None = None
    kind: ClassVar[str] = "training"

    def __post_init__(self) -> None:
        where = f"training of round {self.round}, exchange {self.exchange!r}"
        if not (0 < self.noise_multiplier < math.inf and 0 < self.clip < math.inf and 0 < self.sample_rate <= 1):
            found = f"noise_multiplier {self.noise_multiplier}, clip {self.clip}, sample_rate {self.sample_rate}"
            raise InputError(
                f"{where}: expected a finite noise_multiplier > 0, a finite clip > 0 and 0 < sample_rate <= 1, found: "
                f"{found}"
            )
        if self.round < 0 or self.steps < 1 or self.coordinates < 1:
            found = f"round {self.round}, steps {self.steps}, coordinates {self.coordinates}"
            raise InputError(f"{where}: expected round >= 0, steps >= 1 and coordinates >= 1, found: {found}")
        _check_grid(where, self.noise, self.grid)

    @property
    def unit(self) -> Unit:
        """The protected unit: always records, since the gradient of each record is clipped."""
        return Unit.RECORD

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise on the sum of clipped gradients in each step."""
        return self.noise_multiplier * self.clip

    @property
    def sensitivity(self) -> float:
        """How far (in L2 norm) one record can change the sum of clipped gradients in a step."""
        return self.clip


@dataclass(frozen=True)
class UnboundedLoss:
    """Something that was sent, or may have been sent, without noise: no epsilon bounds its privacy cost."""

    round: int
    exchange: str
    reason: str
    kind: ClassVar[str] = "unbounded"
    noise: ClassVar[None] = None
    sigma: ClassVar[float] = 0.0
    sensitivity: ClassVar[float] = math.inf


Event = Release | TrainingRound | UnboundedLoss
# The unit and trust of a log that holds only unbounded losses.
_UNKNOWN_PROMISE = (Unit.RECORD, Trust.LOCAL)


@dataclass(frozen=True)
class Spending:
    """The epsilon spent after each event of a run, and the guarantee for all events together."""

    events: tuple[Event, ...]
    epsilons: tuple[float, ...]
    """Epsilon after each event; with `--privacy paper`, by Theorem 4's formula."""
    guarantee: Guarantee | None
    """None if there is no event."""
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class _PrivacyLoss:
    """The privacy loss of several events together; `+` is adaptive composition.

    `divergence` (KL) and `distance` (total variation) together bound how far the noise is from exact Gaussian noise.
    """

    mu_squared: float = 0.0
    divergence: float = 0.0
    distance: float = 0.0
    training_curve: Curve | None = None
    """The Rényi curve of all DP-SGD training; None if there was none."""

    @staticmethod
    def from_event(event: Event) -> _PrivacyLoss:
        """Compute the privacy loss of one recorded event."""
        if isinstance(event, UnboundedLoss):
            return _PrivacyLoss(mu_squared=math.inf)
        if isinstance(event, TrainingRound):
            rounding = 0.0 if event.grid is None else bound_rounding_divergence(event.sigma / event.grid)
            curve = compute_dp_sgd_curve(event.sample_rate, event.noise_multiplier, event.steps)
            return _PrivacyLoss(divergence=event.coordinates * (event.steps * rounding), training_curve=curve)
        mu_squared = (event.sensitivity / event.sigma) ** 2
        if event.grid is None:
            return _PrivacyLoss(mu_squared, distance=event.wrap_probability)
        steps = event.sigma / event.grid
        per_coordinate = math.expm1(bound_share_divergence(steps / math.sqrt(event.shares), event.shares))
        return _PrivacyLoss(
            mu_squared,
            divergence=event.coordinates * bound_rounding_divergence(steps),
            distance=event.wrap_probability + event.coordinates * per_coordinate,
        )

    def __add__(self, other: _PrivacyLoss) -> _PrivacyLoss:
        curves = [curve for curve in (self.training_curve, other.training_curve) if curve is not None]
        return _PrivacyLoss(
            self.mu_squared + other.mu_squared,
            self.divergence + other.divergence,
            self.distance + other.distance,
            sum(curves[1:], curves[0]) if curves else None,
        )

    @property
    def noise_distance(self) -> float:
        """A bound on the total-variation distance between the noise as drawn and exact Gaussian noise.

        Pinsker's inequality turns `divergence`, the sum over coordinates and releases, into a distance. It is added to
        `distance`, which covers sums of several clients' noise and wrap-around in a secure sum.
        """
        return self.distance + math.sqrt(self.divergence / 2)

    def find_epsilon(self, calibration: Calibration, delta: float) -> float:
        """Return the epsilon at delta, by exact composition or by the paper's Theorem 4; inf if nothing bounds it."""
        if self.mu_squared == math.inf:
            return math.inf
        if self.training_curve is not None:
            return self._find_renyi_epsilon(self.training_curve + compute_gaussian_curve(self.mu_squared), delta)
        mu = math.sqrt(self.mu_squared)
        if calibration is Calibration.PAPER:
            return compute_epsilon_by_paper_formula(mu, delta)
        return compute_epsilon(mu, delta, self.noise_distance)

    def is_within(self, calibration: Calibration, budget: Budget) -> bool:
        """Whether this privacy loss, computed with this calibration, is within the budget."""
        if calibration is Calibration.PAPER:
            return self.find_epsilon(calibration, budget.delta) <= budget.epsilon * (1 + 1e-9)
        # Compared in delta, where nothing has to be inverted, so that a plan of k releases covers exactly k releases.
        # The grid's part of delta grows with epsilon, so the budget may hold at a smaller epsilon and not at its own.
        return (
            self._find_delta(budget.epsilon) <= budget.delta
            or self.find_epsilon(calibration, budget.delta) <= budget.epsilon
        )

    def _find_delta(self, epsilon: float) -> float:
        if self.mu_squared == math.inf:
            return 1.0
        if self.training_curve is None:
            delta = compute_delta(epsilon, math.sqrt(self.mu_squared))
        else:
            delta = convert_curve_to_delta(self.training_curve + compute_gaussian_curve(self.mu_squared), epsilon)
        return delta + compute_delta_used_by_grid(epsilon, self.noise_distance)

    def _find_renyi_epsilon(self, curve: Curve, delta: float) -> float:
        """Return the smallest epsilon at this delta by Rényi divergences, up to a factor of 1 + 1e-6; inf if none."""
        epsilon = convert_curve_to_epsilon(curve, delta)
        while self._find_delta(epsilon) > delta:
            left = delta - compute_delta_used_by_grid(epsilon, self.noise_distance)
            if left <= 0:
                return math.inf
            # At a smaller epsilon the grid costs less, so this step never goes beyond the epsilon that is sought.
            epsilon = max(convert_curve_to_epsilon(curve, left), epsilon * (1 + 1e-6) + 1e-9)
        return epsilon


def bound_distance_from_gaussian(events: Sequence[Event]) -> float:
    """Bound the total-variation distance between the noise of these events and exact Gaussian noise."""
    return sum((_PrivacyLoss.from_event(event) for event in events), _PrivacyLoss()).noise_distance


def compute_spending(events: Sequence[Event], delta: float) -> Spending:
    """Compute the epsilon at `delta` after each event of a run, and the guarantee for all events together."""
    Budget(1.0, delta)  # refuses a wrong delta, also if there is nothing to add up
    if not events:
        return Spending((), (), None, ())
    return compute_spending_under_promise(events, events, _require_one_promise(events), delta)


def compute_spending_under_promise(
    events: Sequence[Event], converted: Sequence[Event], promise: tuple[Unit, Trust], delta: float
) -> Spending:
    """Compute the epsilon at `delta` after each event, and a guarantee for all events with this promise.

    `converted` are the same events in the same order, each with a sensitivity that is valid under this promise. The
    epsilons are computed from `converted`. The events, counts and caveats in the result are those of `events`.
    """
    Budget(1.0, delta)  # refuses a wrong delta
    unit, trust = promise
    losses = accumulate(_PrivacyLoss.from_event(event) for event in converted)
    calibration = Calibration.PAPER if unit is Unit.PAPER else Calibration.EXACT
    epsilons = tuple(loss.find_epsilon(calibration, delta) for loss in losses)
    last = epsilons[-1]
    guarantee = Guarantee(
        epsilon=None if unit is Unit.PAPER or last == math.inf else last,
        delta=delta,
        unit=unit,
        trust=trust,
        releases=sum(not isinstance(event, TrainingRound) for event in events),
        training_steps=sum(event.steps for event in events if isinstance(event, TrainingRound)),
        nominal_epsilon=last if unit is Unit.PAPER and last < math.inf else None,
    )
    return Spending(tuple(events), epsilons, guarantee, _list_caveats(events))


class BudgetSpentError(RunError):
    """The privacy budget of a run or a site does not cover another release."""


def append_within_budget(events: Sequence[Event], upcoming: Event, budget: Budget) -> tuple[Event, ...]:
    """Return the events with the upcoming one appended; raise BudgetSpentError if the budget does not cover all.

    A run calls this before each release, with all its recorded events: a resumed run does not get a new budget.
    """
    together = (*events, upcoming)
    unit, _ = _require_one_promise(together)
    calibrations = {event.calibration for event in together if isinstance(event, Release)}
    by_paper = unit is Unit.PAPER and calibrations == {Calibration.PAPER}
    check_within_budget(together, Calibration.PAPER if by_paper else Calibration.EXACT, budget)
    return together


def check_within_budget(events: Sequence[Event], calibration: Calibration, budget: Budget) -> None:
    """Raise BudgetSpentError if the budget does not cover these events, of which the last is the upcoming one."""
    if found := explain_missing_guarantee(events):
        raise BudgetSpentError(
            f"the privacy budget does not cover another release: {found}",
            hint="noise cannot protect rows that were sent without noise before: take part with other rows",
        )
    loss = sum((_PrivacyLoss.from_event(event) for event in events), _PrivacyLoss())
    if not loss.is_within(calibration, budget):
        after = loss.find_epsilon(calibration, budget.delta)
        raise BudgetSpentError(
            f"the privacy budget does not cover another release: round {events[-1].round} would bring epsilon to "
            f"{after:.6g} of {budget.epsilon:g} at delta {budget.delta:g}, after {len(events) - 1} releases",
            hint="start a new run, with noise that is planned for all its rounds, or allow a larger epsilon",
        )


def explain_missing_guarantee(events: Sequence[Event]) -> str | None:
    """Say in words why there is no guarantee; return None if an epsilon bounds the cost of all events."""
    reasons = dict.fromkeys(event.reason for event in events if isinstance(event, UnboundedLoss))
    return f"no guarantee: {'; '.join(reasons)}" if reasons else None


def find_promises(events: Sequence[Event]) -> set[tuple[Unit, Trust]]:
    """Find the promises (pairs of protected unit and trust model) of these events."""
    known = {(event.unit, event.trust) for event in events if not isinstance(event, UnboundedLoss)}
    return known or ({_UNKNOWN_PROMISE} if events else set())


def _require_one_promise(events: Sequence[Event]) -> tuple[Unit, Trust]:
    promises = find_promises(events)
    if len(promises) > 1:
        found = ", ".join(sorted(f"{unit}/{trust}" for unit, trust in promises))
        raise InputError(
            f"the releases of a run must have one unit and one trust model, found: {found}",
            hint="give the release log of a single run",
        )
    return promises.pop()


def _list_caveats(events: Sequence[Event]) -> tuple[str, ...]:
    """List why the guarantee may not hold as stated: imperfect noise, a known seed, or no noise at all."""
    found = []
    if any(event.noise is NoiseKind.FLOAT for event in events):
        found.append("simulation only: floating-point noise can be told apart from Gaussian noise by its low bits")
    if any(not isinstance(event, UnboundedLoss) and event.entropy is RandomSource.SEED for event in events):
        found.append("the noise is not private: it came from a fixed seed, and whoever knows the seed can subtract it")
    found += [
        f"no epsilon bounds the release of round {event.round}: {event.reason}"
        for event in events
        if isinstance(event, UnboundedLoss)
    ]
    return tuple(found)
