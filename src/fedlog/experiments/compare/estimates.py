"""Means over repeated splits with intervals that allow for the rows the splits share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over repetitions and its interval; the ends are None where a single repetition gives none."""

    value: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """How far the interval reaches to either side."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Splits:
    """What the repetitions of a comparison have in common."""

    redrawn: bool  # whether every repetition holds out other rows
    judged_share: float  # rows that are judged, over rows that are trained on


def estimate(values: Sequence[float], splits: Splits, confidence: float = CONFIDENCE) -> Estimate:
    """The mean of the repetitions and its interval, from their spread alone.

    Repetitions with other rows held out still share most of their training rows, so their spread alone is too small:
    Nadeau and Bengio (2003) add the share of judged to training rows to 1/J.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, None, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    shared = splits.judged_share if splits.redrawn else 0.0
    half = float(t.ppf((1 + confidence) / 2, count - 1)) * math.sqrt(variance * (1 / count + shared))
    half = min(half, 1.0)  # no share can be further off
    return Estimate(mean, mean - half, mean + half)
