"""Refuse plans with out-of-range numbers, and plans that would fail in the middle of a run or reveal records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedlog.algorithms.interface import Algorithm
from fedlog.errors import InputError
from fedlog.settings.presets import FEWEST_RECORDS
from fedlog.wire.transport import Transport

if TYPE_CHECKING:
    from fedlog.flower.protocol.plan import Plan

LARGEST_COUNT = 1_000_000
LARGEST_FLOAT = 1e38  # clients train in single precision, which holds numbers up to about this
MOST_EPOCHS = 10_000
LARGEST_SEED = 2**63 - 1  # a seed has 64 bits
MOST_GAUSSIANS = 50  # of a class


def check_numbers(plan: Plan) -> None:
    """Raise InputError if a number of the plan is out of range or not finite."""
    for what, value, least, most in _list_bounded_numbers(plan):
        if not least <= value <= most:
            # A whole number may have many thousand digits.
            found = f"{value:.6g}" if isinstance(value, float) else f"{'-' * (value < 0)}2^{value.bit_length()} or so"
            raise InputError(
                f"{what} must be {least:g} to {most:g}, found: {found}", hint="choose a number in this range"
            )


def _list_bounded_numbers(plan: Plan) -> Iterator[tuple[str, float, float, float]]:
    """Yield each number of the plan as (name in errors, value, smallest allowed value, largest allowed value)."""
    for name, value in plan.options.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            most = MOST_EPOCHS if "epochs" in name else LARGEST_COUNT if isinstance(value, int) else LARGEST_FLOAT
            yield f"option {name}", value, -most, most
    yield "the seed", plan.seed, -LARGEST_SEED - 1, LARGEST_SEED
    yield "weight decay", plan.optimiser.weight_decay, 0.0, LARGEST_FLOAT
    if plan.feature_clip is not None:
        yield "the clip's bound", float(plan.feature_clip.partition(":")[2]), 1e-6, 1e6
    if plan.promise is not None:
        yield "epsilon", plan.promise.epsilon, 1e-6, 1e4
        yield "delta", plan.promise.delta, 1e-30, 1.0
        if plan.promise.message_norm is not None:
            yield "the message norm", plan.promise.message_norm, 1e-6, 1e9


def check_gaussian_mixtures(algorithm: Algorithm) -> None:
    """Raise InputError if sites may send too many Gaussians per class, or a Gaussian of too few records."""
    for exchange in algorithm.schedule.round:
        if exchange.parts > MOST_GAUSSIANS:
            raise InputError(
                f"option parts (Gaussians per class) must be at most {MOST_GAUSSIANS}, found: {exchange.parts}",
                hint=f"--set parts={MOST_GAUSSIANS}",
            )
        if exchange.parts > 1 and (exchange.fewest or 0) < FEWEST_RECORDS:
            raise InputError(
                f"option fewest (records per Gaussian) must be at least {FEWEST_RECORDS} if there are several "
                f"Gaussians per class, found: {exchange.fewest}",
                hint=f"--set fewest={FEWEST_RECORDS}, or one Gaussian per class: --set parts=1",
            )


def check_broadcast_form(transport: Transport, *, hidden: bool) -> None:
    """Raise InputError if the server would broadcast differences in a run that is private or has secure sums."""
    if hidden and transport.differences:
        raise InputError(
            "--down differences cannot be used in a deployment that is private or has secure sums: sites compare the "
            "bytes of two heads to see whether the head has changed, and the bytes of differences always change",
            hint="leave out --down differences; dense codecs such as --codec-down q8 can be used",
        )
