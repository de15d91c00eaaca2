"""The axes of a plot: the position of a value, and the values that are written as ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedlog.wire.bits_text import choose_unit

STEP_CHOICES = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`, linear or logarithmic, with its ticks: (value, text)."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def find_position(self, value: float) -> float:
        """Return the position of the value on the axis, from 0 at `low` to 1 at `high`."""
        if self.log:
            low, high, value = math.log10(self.low), math.log10(self.high), math.log10(max(value, self.low))
        else:
            low, high = self.low, self.high
        return (value - low) / (high - low)


def make_linear_axis(label: str, values: Iterable[float], whole_numbers: bool = False) -> Axis:
    """Make a linear axis that covers these values, with ticks at equal steps such as 0.2, 2.5 or 10.

    With `whole_numbers`, all ticks are integers.
    """
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    step = _choose_step((high - low) / 5)
    step = max(1.0, float(round(step))) if whole_numbers else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    values_at = [at * step for at in range(first, last + 1)]
    digits = max(0, (1 if _compute_mantissa(step) == 2.5 else 0) - math.floor(math.log10(step) + 1e-9))
    ticks = tuple((value, f"{value:.{digits}f}") for value in values_at)
    return Axis(label, values_at[0], values_at[-1], ticks)


def make_rounds_axis(last: int) -> Axis:
    """Make an axis of rounds, from 1 to the last one."""
    if last <= 1:
        return Axis("round", 0, 2, ((1, "1"),))
    step = max(1, round(_choose_step(last / 6)))
    marks = sorted({1, *range(step, last + 1, step)} - ({step} if step == 2 and last > 12 else set()))
    return Axis("round", 1, last, tuple((at, str(at)) for at in marks))


def make_bits_axis(label: str, values: Iterable[float]) -> Axis:
    """Make a logarithmic axis that covers these numbers of bits."""
    known = [value for value in values if value > 0] or [1.0]
    low, high = min(known), max(known)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = last if last > first else first + 1
    # For a range of one or two decades: only the part that is used, with ticks at 1, 2 and 5.
    if last - first <= 2:
        candidates = [m * 10.0**p for p in range(first, last + 1) for m in (1, 2, 5)]
        low_end = max((c for c in candidates if c <= low), default=10.0**first)
        high_end = min((c for c in candidates if c >= high and c > low_end), default=10.0**last)
        ticks = [c for c in candidates if low_end <= c <= high_end]
        return Axis(label, low_end, high_end, tuple((value, _format_bits_tick(value)) for value in ticks), log=True)
    every = math.ceil((last - first) / 6)
    powers = range(first, last + 1)
    return Axis(
        label, 10.0**first, 10.0**last, tuple((10.0**p, _format_bits_tick(10.0**p)) for p in powers[::every]), log=True
    )


def make_named_axis(label: str, names: Sequence[str]) -> Axis:
    """Make an axis with one position and one tick for each name."""
    return Axis(label, -0.5, max(len(names) - 0.5, 0.5), tuple((float(at), name) for at, name in enumerate(names)))


def _format_bits_tick(bits: float) -> str:
    """Return the text of a tick on an axis of bits, such as `20 Mb`."""
    unit, size = choose_unit(bits)
    return f"{bits / size:g} {unit}"


def _choose_step(rough: float) -> float:
    """Return the smallest step that is at least `rough`, among 1, 2, 2.5 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in STEP_CHOICES if step * power >= rough * 0.999)


def _compute_mantissa(step: float) -> float:
    """Return the number without its power of ten, such as 2.5 for 0.025 or for 250."""
    return round(step / 10.0 ** math.floor(math.log10(step) + 1e-9), 6)
