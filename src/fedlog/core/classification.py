"""How good predicted probabilities are: accuracy, and what to look at beside it when classes are unbalanced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NORMAL_95 = 1.959963984540054  # within so many standard deviations lies 95 % of a normal distribution


@dataclass(frozen=True)
class Metrics:
    """Figures of one model on one set of records; None where a figure is not defined there."""

    records: int
    accuracy: float | None
    balanced_accuracy: float | None  # mean recall over the classes that occur; None where that is one
    macro_f1: float | None  # mean over the classes that occur or are predicted
    auroc: float | None  # one against the rest, mean over the classes that occur beside others
    confusion: list[list[int]]  # [true][predicted]
    accuracy_interval: tuple[float, float] | None = None  # 95 %, for the records that might have been drawn instead
    classes: int = 0  # that occur


def metrics(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Metrics:
    """The figures for (n, n_class) probabilities and (n,) true classes."""
    n_class = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    confusion = np.zeros((n_class, n_class), dtype=np.int64)
    np.add.at(confusion, (labels, predicted), 1)
    if len(labels) == 0:
        return Metrics(0, None, None, None, None, confusion.tolist())
    right, true, told = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    f1 = [2 * r / (t + p) for r, t, p in zip(right, true, told, strict=True) if t + p]
    areas = [area_under_curve(probabilities[:, c], labels == c) for c in range(n_class) if 0 < true[c] < len(labels)]
    classes = int((true > 0).sum())
    return Metrics(
        records=len(labels),
        accuracy=float(right.sum() / len(labels)),
        balanced_accuracy=float(np.mean(right[true > 0] / true[true > 0])) if classes > 1 else None,
        macro_f1=float(np.mean(f1)),
        auroc=float(np.mean(areas)) if areas else None,
        confusion=confusion.tolist(),
        accuracy_interval=share_interval(float(right.sum() / len(labels)), len(labels)),
        classes=classes,
    )


def share_interval(share: float, records: int) -> tuple[float, float]:
    """The 95 % interval of a share of so many records (Wilson 1927): also with a few records, and at 0 and 1."""
    wide = NORMAL_95**2 / records
    middle = (share + wide / 2) / (1 + wide)
    half = NORMAL_95 * math.sqrt(share * (1 - share) / records + wide / (4 * records)) / (1 + wide)
    return max(0.0, middle - half), min(1.0, middle + half)


def first_within_error(right: Sequence[int], records: int) -> int:
    """Which of several models to take, by how many of the same records each classifies correctly.

    The first whose count is within one standard error (at least one record) of the best (Breiman et al. 1984). On few
    records the best of many is best by chance; the order of the models then says which to prefer.
    """
    best = max(right)
    share = (best + 1) / (records + 2)
    error = max(1.0, math.sqrt(records * share * (1 - share)))
    return next(at for at, count in enumerate(right) if count >= best - error)


def area_under_curve(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """The probability that a positive record scores above a negative one, ties counted half (Mann-Whitney)."""
    n_positive = int(positive.sum())
    n_negative = len(positive) - n_positive
    # Average ranks from 1: scipy.stats would add a second to the start of every process at a site.
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))
