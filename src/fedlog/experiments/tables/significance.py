"""Compute statistics over seeds: means, exact signed-rank tests, Holm's correction, effect sizes with intervals.

Runs are paired by seed. With n pairs that differ, the p value of a signed-rank test is at least 2^-n. If that is not
small enough, no test is made, and the result says how many pairs there were.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from scipy.special import stdtrit

from fedlog.core.classification import rank_with_ties

LEVEL = 0.01  # the paper's significance level
CONFIDENCE = 0.95
EQUAL_DECIMALS = 9  # differences are rounded to this many decimals; the rest is rounding error

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its confidence interval; the ends are None if there are too few runs for an interval."""

    value: float
    low: float | None
    high: float | None

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None without an interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its standard error, which is None for one seed."""

    value: float
    error: float | None
    seeds: int

    @staticmethod
    def from_values(values: Sequence[float]) -> Mean:
        """Compute the mean of at least one value, with its standard error."""
        n = len(values)
        mean = math.fsum(values) / n
        if n < 2:
            return Mean(mean, None, n)
        variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
        return Mean(mean, math.sqrt(variance / n), n)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The ends (low, high) of Student's 95 % interval around the mean; (None, None) for one seed."""
        if self.error is None:
            return None, None
        half = float(stdtrit(self.seeds - 1, (1 + CONFIDENCE) / 2)) * self.error
        return self.value - half, self.value + half


class Alternative(Enum):
    """The direction of a one-tailed test on paired differences."""

    GREATER = "greater"
    LESS = "less"


def compute_signed_rank_p_value(differences: Sequence[float], side: Alternative) -> float:
    """Compute the exact p value of Wilcoxon's signed-rank test; zeros are dropped, and ties get their mean rank.

    Under the null hypothesis each difference is positive or negative with equal probability. So all 2^n patterns of
    signs are equally likely, and those with a rank sum at least as large as the observed one are counted. If all
    differences are 0, p is 1.
    """
    nonzero = np.asarray([value for value in differences if value != 0], dtype=float)
    if not len(nonzero):
        return 1.0
    signed = nonzero if side is Alternative.GREATER else -nonzero
    # Doubled, so that the middle ranks of ties are whole numbers too.
    ranks = np.rint(2 * rank_with_ties(np.abs(signed))).astype(int)
    counts = _count_rank_sums(ranks)
    observed = int(ranks[signed > 0].sum())
    return float(counts[observed:].sum() / counts.sum())


def _count_rank_sums(ranks: np.ndarray) -> np.ndarray:
    """Count how many of the 2^n sign patterns give each sum of positive ranks; ranks are doubled to be integers."""
    counts = np.zeros(int(ranks.sum()) + 1)
    counts[0] = 1
    for rank in ranks:
        counts[rank:] += counts[: len(counts) - rank].copy()
    return counts


def compute_smallest_p_value(differing_pairs: int) -> float:
    """Compute the smallest p value that this many differing pairs can have: that of differences of equal sign."""
    return 2.0**-differing_pairs


def count_differing_pairs_needed(level: float, comparisons: int = 1) -> int:
    """Return the fewest differing pairs that can give a significant result: p * `comparisons` below `level`."""
    return math.floor(math.log2(comparisons / level)) + 1


def correct_by_holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Correct p values for multiple tests by Holm's step-down rule; return them under the same names."""
    adjusted: dict[str, float] = {}
    highest = 0.0
    ordered = sorted(p_values, key=lambda name: p_values[name])
    for at, name in enumerate(ordered):
        highest = max(highest, min(1.0, (len(ordered) - at) * p_values[name]))
        adjusted[name] = highest
    return adjusted


@dataclass(frozen=True)
class PairedEstimate:
    """An estimate from pairs (a difference or a ratio), with an exact interval if there are enough pairs."""

    estimate: float
    low: float | None
    high: float | None
    coverage: float | None  # of the interval; at least 95 %


def estimate_shift(differences: Sequence[float]) -> PairedEstimate:
    """Estimate the shift as the median of pairwise means, and an interval for it.

    The interval has all shifts that the signed-rank test does not reject. With n pairs, the widest interval has a
    coverage of 1 - 2^(1 - n). So a 95 % interval needs at least 6 pairs.
    """
    values = np.asarray(differences, dtype=float)
    rows, columns = np.triu_indices(len(values))
    means = np.sort((values[rows] + values[columns]) / 2)
    estimate = float(np.median(means))
    counts = _count_rank_sums(np.arange(1, len(values) + 1))
    below = np.cumsum(counts) / counts.sum()  # P(rank sum <= k)
    allowed = np.flatnonzero(below <= (1 - CONFIDENCE) / 2)
    if not len(allowed):
        return PairedEstimate(estimate, None, None, None)
    cut = int(allowed[-1])
    return PairedEstimate(estimate, float(means[cut]), float(means[-1 - cut]), float(1 - 2 * below[cut]))


def compute_paired_differences(row: BySeed, reference: BySeed) -> list[float]:
    """Return the row's values minus the reference's values on their common seeds, in the order of the seeds."""
    return [round(row[seed] - reference[seed], EQUAL_DECIMALS) for seed in sorted(row.keys() & reference.keys())]


def compute_mean_difference(row: BySeed, reference: BySeed) -> Mean | None:
    """Compute the mean of row minus reference over their common seeds; None without a common seed."""
    differences = compute_paired_differences(row, reference)
    return Mean.from_values(differences) if differences else None


def estimate_paired_ratio(row: BySeed, reference: BySeed) -> PairedEstimate | None:
    """Estimate the ratio of the row to the reference on common seeds: Hodges-Lehmann on logarithms, with interval.

    With too few pairs for an interval, return the geometric mean without interval. Return None without pairs, or if a
    value is not positive.
    """
    seeds = sorted(row.keys() & reference.keys())
    if not seeds or min(by_seed[seed] for by_seed in (row, reference) for seed in seeds) <= 0:
        return None
    logarithms = [math.log(row[seed] / reference[seed]) for seed in seeds]
    found = estimate_shift(logarithms)
    if found.low is None or found.high is None:
        return PairedEstimate(math.exp(math.fsum(logarithms) / len(seeds)), None, None, None)
    return PairedEstimate(math.exp(found.estimate), math.exp(found.low), math.exp(found.high), found.coverage)


@dataclass(frozen=True)
class SignificanceTest:
    """The outcome of testing a row against the reference row, on their common seeds."""

    pairs: int
    differing: int  # the pairs that are not equal, which alone enter the test
    shift: PairedEstimate | None  # row minus reference; None without a common seed
    side: Alternative | None  # the observed direction, which is tested; None if neither direction prevails
    p: float | None  # None: too few differing pairs for any outcome to be significant
    p_holm: float | None = None
    in_family: bool = False  # whether Holm's correction includes this row

    @property
    def significant(self) -> bool:
        """Whether p is below 0.01 without correction, which the paper marks by an arrow."""
        return self.p is not None and self.p < LEVEL


def compare_with_reference(row: BySeed, reference: BySeed) -> SignificanceTest:
    """Test the row's values against those of the reference, paired by seed."""
    differences = compute_paired_differences(row, reference)
    pairs, differing = len(differences), sum(difference != 0 for difference in differences)
    if not pairs:
        return SignificanceTest(0, 0, None, None, None)
    found = estimate_shift(differences)
    if compute_smallest_p_value(differing) >= LEVEL:
        return SignificanceTest(pairs, differing, found, None, None)
    greater, less = (compute_signed_rank_p_value(differences, side) for side in Alternative)
    side = None if greater == less else Alternative.GREATER if greater < less else Alternative.LESS
    return SignificanceTest(pairs, differing, found, side, min(greater, less))


def compare_all_with_reference(
    rows: Mapping[str, BySeed], reference: str, family: Collection[str]
) -> dict[str, SignificanceTest]:
    """Test every other row against the reference; p values of rows in `family` are also corrected by Holm's rule.

    A row has no corrected p value if there are too few seeds for any outcome to be significant after correction.
    """
    found = {name: compare_with_reference(row, rows[reference]) for name, row in rows.items() if name != reference}
    tested = {name: c.p for name, c in found.items() if name in family and c.p is not None}
    corrected = correct_by_holm(tested)
    lowest = correct_by_holm({name: compute_smallest_p_value(found[name].differing) for name in tested})
    return {
        name: replace(
            c,
            p_holm=corrected[name] if name in tested and lowest[name] < LEVEL else None,
            in_family=name in family,
        )
        for name, c in found.items()
    }


class Agreement(Enum):
    """Whether our result agrees with the one printed in the paper, judged by the interval of their difference."""

    AGREES = "agrees"
    ABOVE = "above"
    BELOW = "below"
    UNDECIDED = "undecided"


AGREES_WITHIN = 1.0  # points; an interval that includes 0 and reaches further is undecided
PRINTED_SEEDS = 10  # of every row that the paper prints


def judge_agreement(difference: Estimate) -> Agreement:
    """Return ABOVE or BELOW if the interval excludes 0, AGREES if it includes 0 and is narrow, else UNDECIDED."""
    if difference.low is None or difference.high is None:
        return Agreement.UNDECIDED
    if difference.low > 0:
        return Agreement.ABOVE
    if difference.high < 0:
        return Agreement.BELOW
    return Agreement.AGREES if max(-difference.low, difference.high) <= AGREES_WITHIN else Agreement.UNDECIDED


def estimate_difference_from_printed_mean(
    ours: Mean, printed: float, printed_error: float, printed_seeds: int = PRINTED_SEEDS
) -> Estimate:
    """Estimate our mean minus the mean in the paper, with Welch's 95 % interval; no interval for one seed."""
    value = ours.value - printed
    if ours.error is None:
        return Estimate(value, None, None)
    own, other = ours.error**2, printed_error**2
    if own + other == 0:
        return Estimate(value, value, value)
    freedom = (own + other) ** 2 / (own**2 / (ours.seeds - 1) + other**2 / (printed_seeds - 1))
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(own + other)
    return Estimate(value, value - half, value + half)
