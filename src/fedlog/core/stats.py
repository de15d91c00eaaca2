"""Sufficient statistics: all that the head needs to know of any number of records, and they add with `+`.

Row y of the sums is the sum of the features of the records of class y. The first feature is the constant 1, so
column 0 holds the counts and no count has to travel beside the sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.core.family import with_constant
from fedlog.errors import InputError


@dataclass(frozen=True, eq=False)
class Statistics:
    """The summed statistics of a set of records; `sums` is (n_class, m), always float64, column 0 = counts."""

    sums: Tensor

    def __post_init__(self) -> None:
        if self.sums.ndim != 2 or self.sums.shape[1] == 0:
            raise InputError(f"statistics must be a (classes, width) matrix, found shape: {tuple(self.sums.shape)}")
        # float32 would lose whole counts above 2^24 and make the sum depend on the order of the clients.
        object.__setattr__(self, "sums", self.sums.detach().to(torch.float64))

    @staticmethod
    def zeros(n_class: int, width: int) -> Statistics:
        """The statistics of no record at all: the neutral element of `+`; `width` is m, the constant included."""
        return Statistics(torch.zeros((n_class, width), dtype=torch.float64))

    @staticmethod
    def of(features: Tensor, labels: Tensor, n_class: int) -> Statistics:
        """The statistics of records with `features` (n, m - 1), without the constant, and `labels` (n,).

        Labels are 0..n_class - 1; n = 0 gives zeros. Raises InputError for other labels and for shapes that do not fit.
        """
        if features.ndim != 2 or labels.shape != features.shape[:1]:
            found = f"features {tuple(features.shape)}, labels {tuple(labels.shape)}"
            raise InputError(f"statistics need features (n, m - 1) and labels (n,), found: {found}")
        labels = labels.long()
        outside = (labels < 0) | (labels >= n_class)
        if bool(outside.any()):
            row = int(outside.nonzero()[0, 0])
            raise InputError(f"label of record {row} must be in 0..{n_class - 1}, found: {int(labels[row])}")
        phi = with_constant(features.detach().to(torch.float64))
        sums = torch.zeros((n_class, phi.shape[1]), dtype=torch.float64, device=phi.device)
        return Statistics(sums.index_add_(0, labels, phi))

    def __add__(self, other: Statistics) -> Statistics:
        if self.sums.shape != other.sums.shape:
            shapes = f"{tuple(self.sums.shape)} and {tuple(other.sums.shape)}"
            raise InputError(f"statistics of different shapes cannot be added: {shapes}")
        return Statistics(self.sums + other.sums)

    @property
    def counts(self) -> Tensor:
        """The number of records of each class, (n_class,); an estimate when the statistics carry noise."""
        return self.sums[:, 0]

    @property
    def total(self) -> float:
        """The number of records; an estimate when the statistics carry noise."""
        return float(self.counts.sum())

    @property
    def n_class(self) -> int:
        """The number of classes, present or not."""
        return self.sums.shape[0]

    @property
    def width(self) -> int:
        """m: the number of features, the constant included."""
        return self.sums.shape[1]

    def means(self, count_above: float = 0.0) -> tuple[Tensor, Tensor]:
        """The class means (n_class, m), and which classes have one, bool (n_class,).

        A class has a mean if its count exceeds `count_above` (noisy statistics ask for more than 0); the others get a
        zero row. Column 0 of a mean is 1.
        """
        present = self.counts > max(count_above, 0.0)
        safe = torch.where(present, self.counts, torch.ones_like(self.counts))
        return torch.where(present[:, None], self.sums / safe[:, None], torch.zeros_like(self.sums)), present


def spread_of_means(statistics: Statistics, count_above: float = 0.0) -> float:
    """The root-mean-square distance of the class means from their common centre; 0 with fewer than two means.

    FedLog-C can blow this up from round to round, so it is recorded each round.
    """
    means, present = statistics.means(count_above)
    means = means[present]
    if len(means) < 2:
        return 0.0
    return float((means - means.mean(dim=0)).square().sum(dim=1).mean().sqrt())


def count_is_usable(statistics: Statistics, std: float) -> bool:
    """Whether there are records, and counts with noise of that std add up to at least twice it; else keep the old head.

    n is the sum of the noisy first column, whose noise has std `std * sqrt(n_class)`. The release counts either way.
    """
    return statistics.total >= 2 * std * math.sqrt(statistics.n_class) if std else bool(statistics.total)


def count_for_mean(std: float) -> float:
    """The noisy count above which a class has a usable mean, for `Statistics.means`: 3 std of its noise."""
    return 3 * std
