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
    """How the repetitions of a comparison hang together."""

    redrawn: bool  # whether every repetition holds out other rows
    judged_share: float  # rows that are judged, over rows that are trained on


def estimate(
    values: Sequence[float],
    splits: Splits,
    confidence: float = CONFIDENCE,
    row_variance: float = 0.0,
    least: float = 0.0,
) -> Estimate:
    """The mean of the repetitions and its interval.

    Repetitions with other rows held out still share most of their training rows, so their spread alone is too small:
    Nadeau and Bengio (2003) add the share of judged to training rows to 1/J. Where every repetition judges the same
    rows, the spread says nothing of the draw of these rows, and `row_variance` adds it. The interval never reaches
    less than `least` to either side: without a single difference seen, n rows still allow one in about n/3.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, None, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    shared = splits.judged_share if splits.redrawn else 0.0
    squared = variance * (1 / count + shared) + (0.0 if splits.redrawn else row_variance)
    half = max(float(t.ppf((1 + confidence) / 2, count - 1)) * math.sqrt(squared), least)
    return Estimate(mean, mean - half, mean + half)


def variance_of_rows(differences: Sequence[Sequence[float]]) -> float:
    """The variance of a mean over sites of means over rows, from each site's differences by row."""
    parts = []
    for rows in differences:
        if len(rows) < 2:
            continue
        mean = math.fsum(rows) / len(rows)
        parts.append(math.fsum((row - mean) ** 2 for row in rows) / (len(rows) - 1) / len(rows))
    return math.fsum(parts) / len(differences) ** 2 if differences else 0.0
