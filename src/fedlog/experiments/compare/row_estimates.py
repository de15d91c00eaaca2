"""Means with intervals: over repeated splits that share rows, and over sites where the row of each answer is known.

Every row that is not for test is a validation row in turn, so the answers to all of them are one cross-validation, and
the rows themselves say how far chance reaches. What an interval rests on:

- Rows (or groups of rows, where a site has such) are drawn independently of each other. The answers of two
  repetitions to one row are not, so a row counts once, by the mean of its answers.
- Which rows are in training moves the answers to the others little. Under this stability the variance by row is the
  right one for the models that were judged (Bayle, Bayle, Janson and Mackey 2020).
- What repetitions differ by beyond their rows (starting points, batches) is a variance of its own, added where chance
  in the rows does not explain it, and always where every repetition judges the same rows.
- A few rows that all agree do not show that none would differ: two rows are added, half of one for either side
  (Agresti and Min 2005).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, t

CONFIDENCE = 0.95
BY_CHANCE = 0.95  # how much of the time rows alone explain how far repetitions differ
NO_DIFFERENCE_SEEN = 3.0  # the rule of three: n rows without a difference allow 3/n of them


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
    """The properties that all repetitions of a comparison share."""

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


class Scale(Enum):
    """The kind of a row's value, and the rows that are added for caution: their number, sum and sum of squares."""

    SHARE = (4.0, 2.0, 2.0)  # right or wrong: two rows of each
    DIFFERENCE = (2.0, 0.0, 1.0)  # of two models: half a row of either sign, and one without a difference


@dataclass(frozen=True, eq=False)
class Answers:
    """One site's judged rows: an entry for each row and repetition."""

    seeds: NDArray[np.int64]
    rows: NDArray[np.int64]
    classes: NDArray[np.int64]
    values: NDArray[np.float64]
    groups: NDArray[np.int64] | None = None  # rows of one group are not independent of each other

    def where(self, chosen: NDArray[np.bool_]) -> Answers:
        """The chosen entries."""
        groups = None if self.groups is None else self.groups[chosen]
        return Answers(self.seeds[chosen], self.rows[chosen], self.classes[chosen], self.values[chosen], groups)


@dataclass(frozen=True)
class _Variance:
    """The variance of one independent contribution to a mean, and from how many values it is known."""

    variance: float
    freedom: float


def estimate_from_rows(
    sites: Sequence[Answers], scale: Scale, *, by_class: bool, confidence: float = CONFIDENCE
) -> Estimate:
    """The mean over sites of the means over their rows; by class, each class of a site counts alike."""
    value = _mean(sites, by_class)
    seeds = np.unique(np.concatenate([site.seeds for site in sites]))
    if len(seeds) < 2:
        return Estimate(value, None, None)
    parts = [*_parts_of_rows(sites, scale, by_class), _part_of_repetitions(sites, seeds, by_class)]
    variance = math.fsum(part.variance for part in parts)
    # Welch and Satterthwaite: how many values the sum of these variances is known from.
    freedom = variance**2 / math.fsum(part.variance**2 / part.freedom for part in parts if part.variance)
    half = float(t.ppf((1 + confidence) / 2, freedom)) * math.sqrt(variance)
    if scale is Scale.DIFFERENCE:
        half = max(half, NO_DIFFERENCE_SEEN / sum(len(np.unique(site.rows)) for site in sites))
    half = min(half, 1.0)  # of a single group nothing is known, and no share can be further off
    return Estimate(value, value - half, value + half)


def _strata(site: Answers, by_class: bool) -> list[Answers]:
    return [site.where(site.classes == each) for each in np.unique(site.classes)] if by_class else [site]


def _row_means(answers: Answers) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The mean value of each row over the repetitions that judged it, and where the row first stands."""
    _, first, places = np.unique(answers.rows, return_index=True, return_inverse=True)
    return np.bincount(places, answers.values) / np.bincount(places), first


def _mean(sites: Sequence[Answers], by_class: bool) -> float:
    return float(np.mean([np.mean([_row_means(part)[0].mean() for part in _strata(site, by_class)]) for site in sites]))


def _parts_of_rows(sites: Sequence[Answers], scale: Scale, by_class: bool) -> Iterator[_Variance]:
    """The variance that comes from the choice of rows, for each site and, where classes count alike, each class."""
    for site in sites:
        strata = _strata(site, by_class)
        share = 1 / (len(sites) * len(strata))
        for answers in strata:
            values, first = _row_means(answers)
            groups = None if answers.groups is None else answers.groups[first]
            found = _variance_of_mean(values, scale) if groups is None else _variance_by_group(values, groups, scale)
            yield _Variance(share**2 * found.variance, found.freedom)


def _variance_of_mean(values: NDArray[np.float64], scale: Scale) -> _Variance:
    more, more_sum, more_squares = scale.value
    count = len(values) + more
    mean = (values.sum() + more_sum) / count
    return _Variance(float((np.square(values).sum() + more_squares) / count - mean**2) / count, count - 1)


def _variance_by_group(values: NDArray[np.float64], groups: NDArray[np.int64], scale: Scale) -> _Variance:
    """The variance of the mean where whole groups are drawn; a single group counts as a single row."""
    _, places = np.unique(groups, return_inverse=True)
    count = int(places.max()) + 1
    if count < 2:
        return _Variance(len(values) * _variance_of_mean(values, scale).variance, 1)
    residuals = np.bincount(places, values - values.mean())
    return _Variance(float(np.square(residuals).sum()) / len(values) ** 2 * count / (count - 1), count - 1)


def _part_of_repetitions(sites: Sequence[Answers], seeds: NDArray[np.int64], by_class: bool) -> _Variance:
    """The variance of the mean because repetitions differ by more than their rows: by starting points and batches.

    Five repetitions measure it badly, so it is taken only where chance in the rows does not explain their spread.
    """
    each = [[site.where(site.seeds == seed) for site in sites] for seed in seeds]
    present = [[site for site in judged if len(site.rows)] for judged in each]
    present = [judged for judged in present if judged]
    if len(present) < 2:
        return _Variance(0.0, 1)
    spread = float(np.var([_mean(judged, by_class) for judged in present], ddof=1))
    explained = 0.0
    if not _same_rows(each):
        explained = float(np.mean([_explained_by_rows(judged, by_class) for judged in present]))
    freedom = len(present) - 1
    if spread <= explained * float(chi2.ppf(BY_CHANCE, freedom)) / freedom:
        return _Variance(0.0, freedom)
    return _Variance((spread - explained) / len(present), freedom)


def _same_rows(repetitions: Sequence[Sequence[Answers]]) -> bool:
    """Whether every repetition judges the same rows of every site."""
    first = repetitions[0]
    return all(
        np.array_equal(np.sort(a.rows), np.sort(b.rows))
        for judged in repetitions[1:]
        for a, b in zip(first, judged, strict=True)
    )


def _explained_by_rows(sites: Sequence[Answers], by_class: bool) -> float:
    """The variance by the choice of rows in one repetition. It is subtracted, so nothing is added for caution."""
    found = 0.0
    for site in sites:
        strata = _strata(site, by_class)
        for answers in strata:
            if len(answers.values) > 1:
                if answers.groups is None:
                    variance = float(np.var(answers.values, ddof=1)) / len(answers.values)
                else:
                    variance = _variance_by_group(answers.values, answers.groups, Scale.SHARE).variance
                found += variance / (len(sites) * len(strata)) ** 2
    return found
