"""Means with confidence intervals: from repetitions alone, or from single rows if the position of each row is known.

Every row that is not a test row is a validation row in some repetition. So all predictions together are a
cross-validation, and their spread over the rows gives the interval. It rests on these assumptions:

- Rows (or groups of rows, if a site has groups) are drawn independently. The predictions of several repetitions for one
  row are not independent, so a row counts once, with the mean of its values.
- Exchanging a few training rows changes the predictions for other rows little. Under this stability the variance over
  rows is right for the models that were scored (Bayle, Bayle, Janson and Mackey 2020).
- Repetitions also differ by initial parameters and batches. The variance that these cause is added to that over rows
  if the choice of rows does not explain how far repetitions differ. It is always added if every repetition scores the
  same rows.
- A few rows that all agree do not prove that every row would. So pseudo-observations widen the interval: two for a
  difference (Agresti and Min 2005) and four for a share.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, stdtrit

from fedlog.experiments.tables.significance import CONFIDENCE, Estimate, Mean

CHANCE_LEVEL = 0.95  # a spread of repetitions below this quantile is explained by the choice of rows
RULE_OF_THREE = 3.0  # if n rows show no difference, up to 3/n of all rows may still have one


@dataclass(frozen=True)
class HoldOutScheme:
    """How repetitions (seeds) hold out rows: whether each holds out different rows, and the ratio to training rows."""

    redrawn: bool  # whether the repetitions hold out different rows
    held_out_ratio: float  # held-out rows divided by training rows


def estimate_from_repetitions(
    values: Sequence[float], scheme: HoldOutScheme, confidence: float = CONFIDENCE, predictions: int | None = None
) -> Estimate:
    """Estimate the mean over repetitions (seeds), with an interval from the spread of their values.

    `predictions` says from how many predictions the values come. The half width of the interval is then at least
    3 / `predictions`, because a few predictions that agree do not prove that all would.

    Repetitions that hold out different rows still share most of their training rows, so their spread is too small.
    Nadeau and Bengio (2003) correct it: if J values have the variance v, that of their mean is v * (1/J + r) instead of
    v / J, where r is the ratio of held-out to training rows.
    """
    mean = Mean.from_values(values)
    if mean.error is None:
        return Estimate(mean.value, None, None)
    shared = scheme.held_out_ratio if scheme.redrawn else 0.0
    half = float(stdtrit(mean.seeds - 1, (1 + confidence) / 2)) * mean.error * math.sqrt(1 + mean.seeds * shared)
    if predictions is not None:
        half = max(half, RULE_OF_THREE / predictions)
    half = min(half, 1.0)  # no share can be further off
    return Estimate(mean.value, mean.value - half, mean.value + half)


class RowValueKind(Enum):
    """Whether a row's value is 0 or 1 (SHARE), or a difference of two such values (DIFFERENCE).

    A member holds the number, the sum and the sum of squares of the pseudo-observations that are added to such rows.
    """

    SHARE = (4.0, 2.0, 2.0)  # right or wrong: two rows of each
    DIFFERENCE = (2.0, 0.0, 1.0)  # of two models: half a row of either sign, and one without a difference


@dataclass(frozen=True, eq=False)
class RowValues:
    """The values of one site's rows (see `RowValueKind`), with one entry for each row and repetition (seed)."""

    seeds: NDArray[np.int64]
    rows: NDArray[np.int64]
    classes: NDArray[np.int64]
    values: NDArray[np.float64]
    groups: NDArray[np.int64] | None = None  # rows of one group are not independent of each other

    def select(self, chosen: NDArray[np.bool_]) -> RowValues:
        """Return the entries for which `chosen` is true."""
        groups = None if self.groups is None else self.groups[chosen]
        return RowValues(self.seeds[chosen], self.rows[chosen], self.classes[chosen], self.values[chosen], groups)


def join_row_values(sites: Sequence[RowValues]) -> RowValues:
    """Return the entries of sites that share their rows, as if one site had them; a row has the values of all sites."""
    groups = [site.groups for site in sites if site.groups is not None]
    return RowValues(
        seeds=np.concatenate([site.seeds for site in sites]),
        rows=np.concatenate([site.rows for site in sites]),
        classes=np.concatenate([site.classes for site in sites]),
        values=np.concatenate([site.values for site in sites]),
        groups=np.concatenate(groups) if len(groups) == len(sites) else None,
    )


@dataclass(frozen=True)
class _Variance:
    """A variance with its degrees of freedom; several independent ones add up to the variance of a mean."""

    variance: float
    freedom: float


def estimate_from_rows(
    sites: Sequence[RowValues], kind: RowValueKind, *, by_class: bool, confidence: float = CONFIDENCE
) -> Estimate:
    """Average the values of each site's rows, then average over sites; return this mean with a confidence interval.

    With `by_class`, each class of a site has the same weight.
    """
    value = _average_over_sites(sites, by_class)
    seeds = np.unique(np.concatenate([site.seeds for site in sites]))
    if len(seeds) < 2:
        return Estimate(value, None, None)
    parts = [*_list_variances_of_rows(sites, kind, by_class), _compute_variance_of_repetitions(sites, seeds, by_class)]
    variance = math.fsum(part.variance for part in parts)
    # Degrees of freedom of the sum of these variances, by Welch and Satterthwaite.
    freedom = variance**2 / math.fsum(part.variance**2 / part.freedom for part in parts if part.variance)
    half = float(stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(variance)
    if kind is RowValueKind.DIFFERENCE:
        half = max(half, RULE_OF_THREE / sum(len(np.unique(site.rows)) for site in sites))
    half = min(half, 1.0)  # no share can be further off
    return Estimate(value, value - half, value + half)


def _split_by_class(site: RowValues, by_class: bool) -> list[RowValues]:
    """Split a site's values by class; without `by_class`, return a list with all values together."""
    return [site.select(site.classes == each) for each in np.unique(site.classes)] if by_class else [site]


def _average_by_row(part: RowValues) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the mean of each row over its repetitions, and the index of each row's first entry."""
    _, first, places = np.unique(part.rows, return_index=True, return_inverse=True)
    return np.bincount(places, part.values) / np.bincount(places), first


def _average_over_sites(sites: Sequence[RowValues], by_class: bool) -> float:
    """Average over rows, then over sites; with `by_class`, each class of a site has the same weight."""
    return float(
        np.mean(
            [np.mean([_average_by_row(part)[0].mean() for part in _split_by_class(site, by_class)]) for site in sites]
        )
    )


def _list_variances_of_rows(sites: Sequence[RowValues], kind: RowValueKind, by_class: bool) -> Iterator[_Variance]:
    """Yield the variances due to the choice of rows: for each site or, with `by_class`, for each class of a site."""
    for site in sites:
        strata = _split_by_class(site, by_class)
        share = 1 / (len(sites) * len(strata))
        for part in strata:
            values, first = _average_by_row(part)
            groups = None if part.groups is None else part.groups[first]
            found = (
                _compute_variance_of_mean(values, kind)
                if groups is None
                else _compute_variance_by_group(values, groups, kind)
            )
            yield _Variance(share**2 * found.variance, found.freedom)


def _compute_variance_of_mean(values: NDArray[np.float64], kind: RowValueKind) -> _Variance:
    """Compute the variance of the mean of independent rows, with the pseudo-observations of this kind added."""
    more, more_sum, more_squares = kind.value
    count = len(values) + more
    mean = (values.sum() + more_sum) / count
    return _Variance(float((np.square(values).sum() + more_squares) / count - mean**2) / count, count - 1)


def _compute_variance_by_group(values: NDArray[np.float64], groups: NDArray[np.int64], kind: RowValueKind) -> _Variance:
    """Compute the variance of the mean if whole groups of rows are drawn at random, not single rows."""
    _, places = np.unique(groups, return_inverse=True)
    count = int(places.max()) + 1
    if count < 2:
        return _Variance(len(values) * _compute_variance_of_mean(values, kind).variance, 1)
    residuals = np.bincount(places, values - values.mean())
    return _Variance(float(np.square(residuals).sum()) / len(values) ** 2 * count / (count - 1), count - 1)


def _compute_variance_of_repetitions(sites: Sequence[RowValues], seeds: NDArray[np.int64], by_class: bool) -> _Variance:
    """Compute the variance of the mean due to initial parameters and batches, which differ between repetitions.

    An estimate from few repetitions is poor. So 0 is returned if the repetitions differ no more than they would
    because of the choice of rows alone.
    """
    each = [[site.select(site.seeds == seed) for site in sites] for seed in seeds]
    present = [[site for site in repetition if len(site.rows)] for repetition in each]
    present = [repetition for repetition in present if repetition]
    if len(present) < 2:
        return _Variance(0.0, 1)
    spread = float(np.var([_average_over_sites(repetition, by_class) for repetition in present], ddof=1))
    explained = 0.0
    if not _have_same_rows(each):
        explained = float(
            np.mean([_compute_variance_explained_by_rows(repetition, by_class) for repetition in present])
        )
    freedom = len(present) - 1
    chi_squared = 2 * float(gammaincinv(freedom / 2, CHANCE_LEVEL))  # the quantile
    if spread <= explained * chi_squared / freedom:
        return _Variance(0.0, freedom)
    return _Variance((spread - explained) / len(present), freedom)


def _have_same_rows(repetitions: Sequence[Sequence[RowValues]]) -> bool:
    """Return whether every repetition has the same rows at every site."""
    first = repetitions[0]
    return all(
        np.array_equal(np.sort(a.rows), np.sort(b.rows))
        for repetition in repetitions[1:]
        for a, b in zip(first, repetition, strict=True)
    )


def _compute_variance_explained_by_rows(sites: Sequence[RowValues], by_class: bool) -> float:
    """Compute the variance of one repetition's mean due to the choice of rows, without pseudo-observations."""
    found = 0.0
    for site in sites:
        strata = _split_by_class(site, by_class)
        for part in strata:
            if len(part.values) > 1:
                if part.groups is None:
                    variance = float(np.var(part.values, ddof=1)) / len(part.values)
                else:
                    variance = _compute_variance_by_group(part.values, part.groups, RowValueKind.SHARE).variance
                found += variance / (len(sites) * len(strata)) ** 2
    return found
