"""The protection of a run: what clients do to their statistics before sending, and what the server does to the sum.

The order is always the same. A client clips (each record, or its whole message), rounds towards zero to the grid, adds
its noise if the mechanism needs any, and sends a dense message and nothing else: no count, no set of classes. Exact
values (for central noise, or a secure sum) are sent as whole numbers of grid steps: rounding to float32 could change a
sum by more than one record can. Noisy values are sent as ordinary floats: rounding after the noise costs no privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from fedlog.core.clip import Clip, L2Clip
from fedlog.core.keys import Key
from fedlog.core.stats import Detail, Moments, compute_moment_sensitivity, find_second_moments_shape
from fedlog.errors import InputError
from fedlog.privacy.accounting import Release, TrainingRound
from fedlog.privacy.guarantee import Budget, Calibration, NoiseSetting, Trust, Unit
from fedlog.privacy.limits import UploadLimits
from fedlog.privacy.mechanisms import (
    DiscreteSampler,
    FloatSampler,
    Mechanism,
    Sampler,
    add_noise,
    bound_noise_distance,
    clip_client_message,
    compute_client_sensitivity,
    plan_noise,
    sum_clipped_moments,
)
from fedlog.privacy.secagg.fixed_point import FixedPoint, choose_fixed_point
from fedlog.privacy.sgd import SgdTraining, find_release_noise_with_training
from fedlog.wire.message import Contribution, Kind, Message

WRAP_PROBABILITY = 2.0**-80
# Decides the modulus of a secure sum only. If a client has more records of one class, the sum may wrap around: it is
# then wrong, but not less private.
RECORDS_OF_A_CLIENT = 2**16


@dataclass(frozen=True)
class ContributionBound:
    """How much one protected unit can add to the statistics: a clip of each record, or a norm of the whole message."""

    clip: Clip | None = None
    message_norm: float | None = None


@dataclass(frozen=True)
class Protection:
    """The privacy protection of a run: its budget, clip, noise and number of releases, for clients and server."""

    budget: Budget
    mechanism: Mechanism
    bound: ContributionBound
    releases: int
    """The planned number of releases, with the opening exchange."""
    coordinates: int
    sampler: Callable[[Key], Sampler]
    fixed_point: FixedPoint | None = None
    """How values are encoded for the secure sum; only with distributed noise."""
    training: SgdTraining | None = None
    """How DP-SGD trains bodies on the protected records; None if they are not trained on them."""

    @property
    def encoding(self) -> FixedPoint:
        """The encoding of values as whole numbers for the secure sum; InputError if the noise is not distributed."""
        if self.fixed_point is None:
            raise InputError(
                f"expected distributed noise for a secure sum, found: {self.mechanism.trust} noise",
                hint="--trust distributed goes with --aggregation secure",
            )
        return self.fixed_point

    @property
    def limits(self) -> UploadLimits:
        """The limits against which the server checks a client's message."""
        # Counts are whole numbers, and so multiples of the grid. But if a message is scaled down to its norm, a count
        # may lose up to one grid step by rounding, while the features lose nothing.
        count_rounding = 0.0 if self.bound.message_norm is None else self.mechanism.grid
        return UploadLimits(
            self.bound.clip, self.bound.message_norm, self.mechanism.client_std, count_rounding=count_rounding
        )

    def sum_moments(self, features: Tensor, labels: Tensor, n_class: int, detail: Detail) -> Moments:
        """Sum a client's first and second moments, with each record clipped and without noise."""
        if self.bound.clip is None:
            return Moments.from_records(features, labels, n_class, detail)
        return sum_clipped_moments(features, labels, n_class, self.bound.clip, self.mechanism.grid, detail)

    def protect(self, message: Message, key: Key) -> Message:
        """Return the message as it leaves the client: clipped, rounded to the grid, with the client's noise.

        Raise InputError for a message with anything but statistics: an exact count, for example, would be a leak.
        """
        expected = {Kind.STATISTICS: 1, Kind.MOMENTS: 2}
        shapes = [tuple(array.shape) for array in message.arrays]
        if expected.get(message.kind) != len(message.arrays):
            raise InputError(
                f"a method can send only statistics in a private run, found: {message.kind.name.lower()} {shapes}",
                hint="--method fedlog, or another method that sends statistics",
            )
        grid, norm = self.mechanism.grid, self.bound.message_norm
        # As one vector: one norm bounds it, and one stream of noise covers it.
        sums = torch.cat([array.to(torch.float64).reshape(-1) for array in message.arrays])
        sums = sums if norm is None else clip_client_message(sums, norm, grid)
        if self.mechanism.client_std:
            sums = add_noise(sums, self.mechanism.client_std, self.sampler(key))
        if self.mechanism.trust is Trust.LOCAL:
            return Message(message.kind, split_into_shapes(sums, shapes))
        # Exact values are whole numbers of steps already; with floating-point noise in a simulation they are not.
        return Message(message.kind, split_into_shapes(torch.trunc(sums / grid).to(torch.int64), shapes))

    def convert_to_feature_units(self, upload: Contribution) -> Contribution:
        """Convert an upload from grid steps to units of the features, and note the std of the client's noise."""
        if self.mechanism.trust is not Trust.LOCAL:
            upload = replace(upload, arrays=tuple(steps * self.mechanism.grid for steps in upload.arrays))
        return replace(upload, noise_std=self.mechanism.client_std)

    def add_server_noise(self, total: Contribution, key: Key) -> Contribution:
        """Return the sum with the server's noise if the noise is central, else the unchanged sum."""
        if not self.mechanism.server_std:
            return total
        sums = torch.cat([array.reshape(-1) for array in total.arrays])
        noisy = add_noise(sums, self.mechanism.server_std, self.sampler(key))
        arrays = split_into_shapes(noisy, [tuple(array.shape) for array in total.arrays])
        return replace(total, arrays=arrays, noise_std=math.hypot(total.noise_std, self.mechanism.server_std))

    def with_noise_draw(self, draw: int) -> Protection:
        """Return a copy that draws other float noise for the statistics, from the seed and the number `draw`."""
        return replace(self, sampler=lambda key: FloatSampler(key.child("draw", draw)))

    def make_training_event(self, round_number: int, exchange: str) -> TrainingRound | None:
        """Make the event to record before results of this exchange's training are sent; None without DP-SGD."""
        if self.training is None:
            return None
        plan, sampler = self.training.plan, self.training.sampler(Key(0))
        return TrainingRound(
            round=round_number,
            exchange=exchange,
            trust=self.mechanism.trust,
            noise=sampler.kind,
            entropy=sampler.entropy,
            coordinates=self.training.coordinates,
            grid=sampler.grid,
            **asdict(plan),
        )

    def make_release_event(self, round_number: int, exchange: str) -> Release:
        """Make the event to record before the noisy messages of this exchange are sent."""
        mechanism, sampler = self.mechanism, self.sampler(Key(0))
        return Release(
            round=round_number,
            exchange=exchange,
            unit=mechanism.unit,
            trust=mechanism.trust,
            noise=sampler.kind,
            entropy=sampler.entropy,
            sigma=mechanism.sigma,
            sensitivity=mechanism.sensitivity,
            coordinates=self.coordinates,
            grid=sampler.grid,
            shares=mechanism.noise_shares,
            wrap_probability=0.0 if self.fixed_point is None else self.fixed_point.wrap_probability,
            calibration=mechanism.calibration,
        )


def make_protection(
    budget: Budget,
    *,
    unit: Unit,
    trust: Trust,
    calibration: Calibration,
    bound: ContributionBound,
    releases: int,
    statistics_shape: tuple[int, int],
    clients: int,
    honest_survivors: int = 1,
    noise: NoiseSetting = NoiseSetting.FLOAT,
    training: SgdTraining | None = None,
    detail: Detail = Detail.MEANS,
) -> Protection:
    """Make the protection that keeps a run with this number of releases of statistics within the budget.

    `statistics_shape` is (n_class, m). If `detail` asks for second moments, each release also holds second
    moments, with the same noise and one common sensitivity.
    """
    n_class, m = statistics_shape
    sensitivity = _find_sensitivity(unit, trust, bound, m, detail)
    wraps = WRAP_PROBABILITY if trust is Trust.DISTRIBUTED else 0.0
    coordinates = n_class * m + math.prod(find_second_moments_shape(detail, n_class, m - 1) or (0,))
    mechanism = plan_noise(
        budget,
        releases=releases,
        sensitivity=sensitivity,
        coordinates=coordinates,
        unit=unit,
        trust=trust,
        calibration=calibration,
        honest_survivors=honest_survivors,
        wrap_probability=wraps,
    )
    if training is not None:
        distance = bound_noise_distance(releases, coordinates, mechanism.noise_shares, wraps)
        distance += bound_noise_distance(training.rounds * training.plan.steps, training.coordinates)
        sigma = find_release_noise_with_training(
            budget, training.plan, training.rounds, releases, sensitivity, distance
        )
        mechanism = replace(mechanism, sigma=sigma)
    fixed_point = None
    if trust is Trust.DISTRIBUTED:
        largest = RECORDS_OF_A_CLIENT * mechanism.sensitivity if bound.message_norm is None else bound.message_norm
        std = mechanism.compute_std_of_sum(clients)
        fixed_point = choose_fixed_point(mechanism.grid, clients * largest, std, coordinates, WRAP_PROBABILITY)
    sampler = choose_sampler(noise, mechanism.grid)
    return Protection(budget, mechanism, bound, releases, coordinates, sampler, fixed_point, training)


def split_into_shapes(vector: Tensor, shapes: Sequence[tuple[int, ...]]) -> tuple[Tensor, ...]:
    """Split the vector into arrays of these shapes."""
    parts = torch.split(vector, [math.prod(shape) for shape in shapes])
    return tuple(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))


def _find_sensitivity(unit: Unit, trust: Trust, bound: ContributionBound, width: int, detail: Detail) -> float:
    if unit is Unit.CLIENT:
        if bound.message_norm is None:
            raise InputError("--privacy client needs a bound on each client's message", hint="--message-norm 20")
        return compute_client_sensitivity(bound.message_norm, trust)
    if bound.clip is None:
        raise InputError(f"--privacy {unit} needs a bound on each record's features", hint="--clip clamp:2 or l2:3")
    if bound.message_norm is not None:
        raise InputError(
            f"--message-norm bounds clients, but --privacy {unit} protects records, found: {bound.message_norm:g}",
            hint="leave out --message-norm, or use --privacy client",
        )
    if detail is Detail.MEANS:
        return bound.clip.sensitivity(width)
    if not isinstance(bound.clip, L2Clip):
        raise InputError(
            "second moments need a clip of each record's L2 norm (l2:R), found: a clip of each feature (clamp:B)",
            hint="--clip l2:1; `+unit` at the end of the body's name scales every feature vector to norm 1",
        )
    return compute_moment_sensitivity(bound.clip.radius, detail)


def choose_sampler(noise: NoiseSetting, grid: float) -> Callable[[Key], Sampler]:
    """Return a function that makes a noise sampler from a key; discrete noise lies on this grid and needs no key."""
    if noise is NoiseSetting.FLOAT:
        return FloatSampler
    sampler = DiscreteSampler(grid)
    return lambda key: sampler
