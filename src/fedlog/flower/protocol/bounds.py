"""Refuse plans with numbers that make no sense, or that would fail in the middle of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedlog.algorithms.shape import Algorithm
from fedlog.errors import InputError
from fedlog.settings.promise import Promise
from fedlog.wire.transport import Transport

LARGEST_COUNT = 1_000_000
LARGEST_NUMBER = 1e38  # clients train in single precision, which holds numbers up to about this
MOST_EPOCHS = 10_000
CLIPS = (1e-6, 1e6)
NORMS = (1e-6, 1e9)
EPSILONS = (1e-6, 1e4)
SMALLEST_DELTA = 1e-30
LARGEST_SEED = 2**63
MOST_GAUSSIANS = 50  # of a class
FEWEST_RECORDS = 10
"""The fewest records for each of several Gaussians of a class: one of fewer would reveal single records."""


def check_options(options: Mapping[str, object]) -> None:
    """Refuse a method's option if it is a number that is not finite, or far too large."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        most = MOST_EPOCHS if "epochs" in name else LARGEST_COUNT if isinstance(value, int) else LARGEST_NUMBER
        if not (math.isfinite(value) and abs(value) <= most):
            raise InputError(f"option {name} must be -{most:g} to {most:g}, found: {_shorten_number(value)}")


def check_gaussians(algorithm: Algorithm) -> None:
    """Refuse mixtures in which a Gaussian may describe only a few records."""
    for exchange in algorithm.schedule.round:
        if exchange.parts > MOST_GAUSSIANS:
            raise InputError(f"a site sends at most {MOST_GAUSSIANS} Gaussians a class, found: {exchange.parts}")
        if exchange.parts > 1 and (exchange.fewest or 0) < FEWEST_RECORDS:
            raise InputError(
                f"each of several Gaussians a class needs {FEWEST_RECORDS} records or more, found: {exchange.fewest}",
                hint=f"--set fewest={FEWEST_RECORDS}, or one Gaussian a class: --set parts=1",
            )


def check_seed_and_decay(seed: int, weight_decay: float) -> None:
    """Refuse a seed of more than 64 bits, and a weight decay that is not finite, or far too large."""
    if not -LARGEST_SEED <= seed < LARGEST_SEED:
        raise InputError(f"a seed must fit 64 bits, found: {_shorten_number(seed)}")
    _check_within("weight decay", weight_decay, (0.0, LARGEST_NUMBER))


def check_clip(clip: str | None) -> None:
    """Refuse a clip that is too wide or too narrow for its noise to be computed."""
    if clip is not None:
        _check_within("a clip", float(clip.partition(":")[2]), CLIPS)


def check_promise_numbers(promise: Promise) -> None:
    """Refuse a privacy promise with numbers for which no noise can be computed."""
    check_clip(promise.clip)
    _check_within("epsilon", promise.epsilon, EPSILONS)
    _check_within("delta", promise.delta, (SMALLEST_DELTA, 1.0))
    if promise.message_norm is not None:
        _check_within("the message norm", promise.message_norm, NORMS)


def _check_within(what: str, value: float, bounds: tuple[float, float]) -> None:
    if not bounds[0] <= value <= bounds[1]:
        raise InputError(f"{what} must be {bounds[0]:g} to {bounds[1]:g}, found: {value!r}")


def _shorten_number(value: float) -> str:
    """The number as a short text, also for a whole number of many thousand digits."""
    return f"{value:.6g}" if isinstance(value, float) else f"{'-' * (value < 0)}2^{value.bit_length()} or so"


def check_differences(transport: Transport, *, hidden: bool) -> None:
    """Refuse `--down differences` in runs that hide a site's figures."""
    if hidden and transport.differences:
        raise InputError(
            "differences cannot be used in a private run or a secure sum of a deployment: its sites compare the bytes "
            "of two heads to see whether the head has moved, and differences are other bytes every time",
            hint="leave out --down differences; dense codecs such as --codec-down q8 can be used",
        )
