"""Sufficient statistics: sums over records from which a head is solved; they add with `+`.

Row y of the sums is the sum of the features of the records of class y. The first feature is the constant 1, so
column 0 holds the counts and they need not be sent separately. `Moments` also hold the second moments that some heads
need, as packed triangles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedlog.core.packed_matrix import count_triangle_entries, pack_triangle, unpack_triangle
from fedlog.errors import InputError

CHUNK_RECORDS = 4096


def add_constant(features: Tensor) -> Tensor:
    """The features with the constant 1 put in front: (..., m - 1) -> (..., m)."""
    return torch.cat((features.new_ones((*features.shape[:-1], 1)), features), dim=-1)


@dataclass(frozen=True, eq=False)
class Statistics:
    """The summed statistics of a set of records: `sums` (n_class, m), always float64, with the counts in column 0."""

    sums: Tensor

    def __post_init__(self) -> None:
        if self.sums.ndim != 2 or self.sums.shape[1] == 0:
            raise InputError(
                f"statistics must be a (classes, 1 + features) matrix, found shape: {tuple(self.sums.shape)}"
            )
        # float32 would lose whole counts above 2^24 and make the sum depend on the order of the clients.
        object.__setattr__(self, "sums", self.sums.detach().to(torch.float64))

    @staticmethod
    def zeros(n_class: int, n_columns: int) -> Statistics:
        """The statistics of zero records; `n_columns` is m, the number of features with the constant."""
        return Statistics(torch.zeros((n_class, n_columns), dtype=torch.float64))

    @staticmethod
    def from_records(features: Tensor, labels: Tensor, n_class: int) -> Statistics:
        """The statistics of records with `features` (n, m - 1), without the constant, and `labels` (n,).

        Labels are 0..n_class - 1; n = 0 gives zeros. Raises InputError for other labels and for shapes that differ.
        """
        if features.ndim != 2 or labels.shape != features.shape[:1]:
            found = f"features {tuple(features.shape)}, labels {tuple(labels.shape)}"
            raise InputError(f"expected features (records, width) and labels (records,), found: {found}")
        labels = labels.long()
        outside = (labels < 0) | (labels >= n_class)
        if bool(outside.any()):
            row = int(outside.nonzero()[0, 0])
            raise InputError(f"label of record {row} must be 0 to {n_class - 1}, found: {int(labels[row])}")
        phi = add_constant(features.detach().to(torch.float64))
        sums = torch.zeros((n_class, phi.shape[1]), dtype=torch.float64, device=phi.device)
        return Statistics(sums.index_add_(0, labels, phi))

    def __add__(self, other: Statistics) -> Statistics:
        if self.sums.shape != other.sums.shape:
            shapes = f"{tuple(self.sums.shape)} and {tuple(other.sums.shape)}"
            raise InputError(f"only statistics of the same shape can be added, found: {shapes}")
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
    def n_columns(self) -> int:
        """m: the number of features with the constant, one more than the body's width."""
        return self.sums.shape[1]

    def means(self, count_above: float = 0.0) -> tuple[Tensor, Tensor]:
        """The class means (n_class, m), and a mask (n_class,) of the classes that have one.

        A class has a mean if its count is above `count_above`; callers set it above 0 if the statistics carry noise.
        The other classes get a row of zeros. Column 0 of a mean is 1.
        """
        present = self.counts > max(count_above, 0.0)
        safe = torch.where(present, self.counts, torch.ones_like(self.counts))
        return torch.where(present[:, None], self.sums / safe[:, None], torch.zeros_like(self.sums)), present


def measure_spread_of_means(statistics: Statistics, count_above: float = 0.0) -> float:
    """The root-mean-square distance of the class means from their common centre; 0 with fewer than two means.

    Only classes with a count above `count_above` have a mean, see `Statistics.means`. Runs record this distance in each
    round, because under FedLog-C it can grow without bound.
    """
    means, present = statistics.means(count_above)
    means = means[present]
    if len(means) < 2:
        return 0.0
    return float((means - means.mean(dim=0)).square().sum(dim=1).mean().sqrt())


def is_count_usable(statistics: Statistics, noise_std: float) -> bool:
    """Whether the noisy number of records is at least twice the std of its noise, so that a head may be solved.

    The number is the sum of the noisy counts, so its noise has std `noise_std * sqrt(n_class)`. Without noise one
    record is enough. If the number is not usable, callers keep the old head; the release is still charged to the
    privacy budget.
    """
    return statistics.total >= 2 * noise_std * math.sqrt(statistics.n_class) if noise_std else bool(statistics.total)


def find_least_count_for_mean(noise_std: float) -> float:
    """The count that a class must exceed to have a usable mean: 3 times the std of the noise in its count.

    Pass the result to `Statistics.means` as `count_above`.
    """
    return 3 * noise_std


class Detail(StrEnum):
    """Which second moments are summed, beside the counts and sums of each class; w is the number of features."""

    MEANS = "means"
    """None: counts and class sums alone."""
    SQUARES = "squares"
    """For each class the sum of the squared features, (n_class, w)."""
    SECOND = "second"
    """The second moments of all records together, packed, (1, w (w + 1) / 2)."""
    CLASS_SECOND = "class-second"
    """The second moments of each class, packed, (n_class, w (w + 1) / 2)."""


@dataclass(frozen=True, eq=False)
class Moments:
    """The summed first and second moments of a set of records; `detail` says which second moments these are."""

    statistics: Statistics
    detail: Detail = Detail.MEANS
    second: Tensor | None = None

    def __post_init__(self) -> None:
        expected = find_second_moments_shape(self.detail, self.n_class, self.width)
        found = None if self.second is None else tuple(self.second.shape)
        if found != expected:
            raise InputError(f"second moments with detail={self.detail} must have shape {expected}, found: {found}")
        if self.second is not None:
            object.__setattr__(self, "second", self.second.detach().to(torch.float64))

    @staticmethod
    def from_records(features: Tensor, labels: Tensor, n_class: int, detail: Detail) -> Moments:
        """The moments of records with `features` (n, w), without the constant, and `labels` (n,)."""
        statistics = Statistics.from_records(features, labels, n_class)
        shape = find_second_moments_shape(detail, n_class, features.shape[1])
        if shape is None:
            return Moments(statistics)
        second = torch.zeros(shape, dtype=torch.float64)
        for part, marks in zip(torch.split(features, CHUNK_RECORDS), torch.split(labels, CHUNK_RECORDS), strict=True):
            second += _sum_second_moments(part.detach().to(torch.float64), marks.long(), n_class, detail)
        return Moments(statistics, detail, second)

    @staticmethod
    def zeros(n_class: int, width: int, detail: Detail) -> Moments:
        """The moments of zero records; `width` is the number of features without the constant."""
        shape = find_second_moments_shape(detail, n_class, width)
        second = None if shape is None else torch.zeros(shape, dtype=torch.float64)
        return Moments(Statistics.zeros(n_class, 1 + width), detail, second)

    def __add__(self, other: Moments) -> Moments:
        if self.detail is not other.detail:
            raise InputError(
                f"only moments of the same detail can be added, found: {self.detail} and {other.detail}",
                hint="sum the records of all sites with the same `detail`",
            )
        statistics = self.statistics + other.statistics
        if self.second is None or other.second is None:
            return Moments(statistics)
        return Moments(statistics, self.detail, self.second + other.second)

    def __mul__(self, weight: float) -> Moments:
        """The moments if each record counted `weight` times."""
        second = None if self.second is None else self.second * weight
        return Moments(Statistics(self.statistics.sums * weight), self.detail, second)

    @property
    def n_class(self) -> int:
        """The number of classes, present or not."""
        return self.statistics.n_class

    @property
    def width(self) -> int:
        """The number of features without the constant."""
        return self.statistics.n_columns - 1

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """The arrays to send: the sums (n_class, 1 + w), then the second moments if there are any."""
        return (self.statistics.sums,) if self.second is None else (self.statistics.sums, self.second)

    @staticmethod
    def from_arrays(arrays: tuple[Tensor, ...], detail: Detail) -> Moments:
        """The moments with these arrays, as the property `arrays` returns them."""
        return Moments(Statistics(arrays[0]), detail, arrays[1] if len(arrays) > 1 else None)

    def gram(self) -> Tensor:
        """The second moments of all records, (w, w)."""
        return unpack_triangle(self._require_detail(Detail.SECOND, Detail.CLASS_SECOND).sum(0), self.width)

    def within_scatter(self) -> Tensor:
        """The scatter around the class means, (w, w): second moments less sum_y n_y mu_y mu_y^T."""
        means, present = self.statistics.means()
        weighted = means[present, 1:] * self.statistics.counts[present, None]
        return self.gram() - weighted.mT @ means[present, 1:]

    def class_scatters(self) -> Tensor:
        """The scatter of each class around the class's mean, (n_class, w, w)."""
        means, _ = self.statistics.means()
        outer = means[:, 1:, None] * means[:, None, 1:]
        second = unpack_triangle(self._require_detail(Detail.CLASS_SECOND), self.width)
        return second - self.statistics.counts[:, None, None] * outer

    def class_scatter_diagonals(self) -> Tensor:
        """The diagonals of the class scatters, (n_class, w): each feature's sum of squares around the class's mean."""
        means, _ = self.statistics.means()
        return self._require_detail(Detail.SQUARES) - self.statistics.counts[:, None] * means[:, 1:].square()

    def _require_detail(self, *details: Detail) -> Tensor:
        """The second moments; InputError if their `detail` is not one of these."""
        if self.second is None or self.detail not in details:
            needed = " or ".join(details)
            raise InputError(
                f"this head needs second moments of detail {needed}, found: {self.detail}",
                hint=f"sum the moments with detail {needed}; a method chooses the detail by its attribute `detail`",
            )
        return self.second


def find_second_moments_shape(detail: Detail, n_class: int, width: int) -> tuple[int, int] | None:
    """The shape of the second moments of that detail; None if it has no second moments (MEANS)."""
    if detail is Detail.MEANS:
        return None
    if detail is Detail.SQUARES:
        return (n_class, width)
    return (1 if detail is Detail.SECOND else n_class, count_triangle_entries(width))


def compute_moment_sensitivity(radius: float, detail: Detail) -> float:
    """The largest L2 change that one record with |phi| <= radius makes in counts, sums and second moments together.

    With R = radius: counts change by 1, sums by at most R, packed second moments by |phi|^2 <= R^2, and sums of
    squared features by at most R^2 (if all of phi is in one feature).
    Together they change by at most sqrt(1 + R^2 + R^4).
    """
    second = 0.0 if detail is Detail.MEANS else radius**4
    return math.sqrt(1 + radius**2 + second)


def _sum_second_moments(phi: Tensor, labels: Tensor, n_class: int, detail: Detail) -> Tensor:
    """The second moments of these records in the shape of `detail`."""
    if detail is Detail.SQUARES:
        return phi.new_zeros((n_class, phi.shape[1])).index_add_(0, labels, phi.square())
    if detail is Detail.SECOND:
        return pack_triangle(phi.mT @ phi)[None]
    packed = phi.new_zeros((n_class, count_triangle_entries(phi.shape[1])))
    for label in sorted(set(labels.tolist())):
        own = phi[labels == label]
        packed[label] = pack_triangle(own.mT @ own)
    return packed
