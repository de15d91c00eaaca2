"""Metrics of predicted probabilities: accuracy, and others that suit classes of different sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NORMAL_95 = 1.959963984540054  # 95 % of a normal distribution lies within so many standard deviations


@dataclass(frozen=True)
class Metrics:
    """The metrics of one model on one set of records; None for a metric that is not defined on them."""

    records: int
    accuracy: float | None
    balanced_accuracy: float | None  # mean recall over the classes that occur; None if only one occurs
    macro_f1: float | None  # mean over the classes that occur or are predicted
    auroc: float | None  # one class against the rest, mean over the classes that occur; None if only one occurs
    confusion: list[list[int]]  # [true][predicted]
    accuracy_interval: tuple[float, float] | None = None  # 95 % confidence interval of the accuracy
    classes: int = 0  # the number of classes that occur


def compute_metrics(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Metrics:
    """The metrics of (n, n_class) probabilities, given the (n,) true classes."""
    n_class = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    confusion = np.zeros((n_class, n_class), dtype=np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    if len(labels) == 0:
        return Metrics(0, None, None, None, None, confusion.tolist())
    right, true, guessed = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    f1 = [2 * r / (t + p) for r, t, p in zip(right, true, guessed, strict=True) if t + p]
    areas = [
        compute_area_under_curve(probabilities[:, c], labels == c) for c in range(n_class) if 0 < true[c] < len(labels)
    ]
    classes = int((true > 0).sum())
    return Metrics(
        records=len(labels),
        accuracy=float(right.sum() / len(labels)),
        balanced_accuracy=float(np.mean(right[true > 0] / true[true > 0])) if classes > 1 else None,
        macro_f1=float(np.mean(f1)),
        auroc=float(np.mean(areas)) if areas else None,
        confusion=confusion.tolist(),
        accuracy_interval=compute_wilson_interval(float(right.sum() / len(labels)), len(labels)),
        classes=classes,
    )


def compute_wilson_interval(share: float, records: int) -> tuple[float, float]:
    """The 95 % confidence interval (Wilson 1927) of a share observed on `records` records; also valid for 0 and 1."""
    wide = NORMAL_95**2 / records
    middle = (share + wide / 2) / (1 + wide)
    half = NORMAL_95 * math.sqrt(share * (1 - share) / records + wide / (4 * records)) / (1 + wide)
    return max(0.0, middle - half), min(1.0, middle + half)


def choose_nearly_best(correct: Sequence[int], records: int) -> int:
    """The index of the first model whose accuracy is within one standard error of the best (Breiman et al. 1984).

    `correct` says how many of the same `records` records each model classifies correctly. On few records the best of
    many models is best by chance, so the first model that is nearly as good is taken: list preferred models first. A
    model with one correct record less than the best is always nearly as good.
    """
    best = max(correct)
    share = (best + 1) / (records + 2)
    error = max(1.0, math.sqrt(records * share * (1 - share)))
    return next(at for at, count in enumerate(correct) if count >= best - error)


def compute_area_under_curve(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """The probability that a positive record scores above a negative one, ties counted half (Mann-Whitney)."""
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    ranks = rank_with_ties(scores)
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def rank_with_ties(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank of each value, from 1; equal values share the mean of their ranks.

    Equal to `scipy.stats.rankdata`, which is not used because its import would add half a second to every process.
    """
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks
