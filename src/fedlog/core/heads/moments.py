"""First and second moments of features by class: all that the heads of this room need, and they add with `+`.

Second moments are symmetric, so only the upper triangle is kept, row by row. Entries off the diagonal carry a factor
sqrt(2): the length of a record's packed triangle is then exactly |phi|^2, which is what privacy noise is scaled to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedlog.core.stats import Statistics
from fedlog.errors import InputError

CHUNK_RECORDS = 4096


class Detail(StrEnum):
    """How much beyond counts and class sums is summed."""

    MEANS = "means"
    """Counts and class sums alone."""
    SQUARES = "squares"
    """For each class the sum of the squared features, (n_class, w)."""
    SECOND = "second"
    """The second moments of all records together, packed, (1, w (w + 1) / 2)."""
    CLASS_SECOND = "class-second"
    """The second moments of each class, packed, (n_class, w (w + 1) / 2)."""


def triangle_entries(width: int) -> int:
    """The number of entries of a packed (width, width) matrix."""
    return width * (width + 1) // 2


def diagonal_places(width: int) -> Tensor:
    """Where in a packed matrix its diagonal stands, (width,)."""
    rows = torch.arange(width)
    return rows * width - rows * (rows - 1) // 2


def pack(matrix: Tensor) -> Tensor:
    """(..., w, w) symmetric -> (..., w (w + 1) / 2), entries off the diagonal times sqrt(2)."""
    rows, columns, scale = _find_places(matrix.shape[-1], matrix)
    return matrix[..., rows, columns] * scale


def unpack(packed: Tensor, width: int) -> Tensor:
    """The symmetric (..., w, w) matrix that `pack` packed."""
    rows, columns, scale = _find_places(width, packed)
    matrix = packed.new_zeros((*packed.shape[:-1], width, width))
    values = packed / scale
    matrix[..., rows, columns] = values
    matrix[..., columns, rows] = values
    return matrix


def _find_places(width: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = torch.triu_indices(width, width, device=like.device)
    scale = torch.where(rows == columns, 1.0, math.sqrt(2)).to(like)
    return rows, columns, scale


@dataclass(frozen=True, eq=False)
class Moments:
    """Summed first and second moments of a set of records; `second` is 2-d as its `Detail` says, None for MEANS."""

    statistics: Statistics
    detail: Detail = Detail.MEANS
    second: Tensor | None = None

    def __post_init__(self) -> None:
        expected = second_shape(self.detail, self.n_class, self.width)
        found = None if self.second is None else tuple(self.second.shape)
        if found != expected:
            raise InputError(f"second moments of detail {self.detail} must have shape {expected}, found: {found}")
        if self.second is not None:
            object.__setattr__(self, "second", self.second.detach().to(torch.float64))

    @staticmethod
    def of(features: Tensor, labels: Tensor, n_class: int, detail: Detail) -> Moments:
        """The moments of records with `features` (n, w), without the constant, and `labels` (n,)."""
        statistics = Statistics.of(features, labels, n_class)
        shape = second_shape(detail, n_class, features.shape[1])
        if shape is None:
            return Moments(statistics)
        second = torch.zeros(shape, dtype=torch.float64)
        for part, marks in zip(torch.split(features, CHUNK_RECORDS), torch.split(labels, CHUNK_RECORDS), strict=True):
            second += _sum_second(part.detach().to(torch.float64), marks.long(), n_class, detail)
        return Moments(statistics, detail, second)

    @staticmethod
    def zeros(n_class: int, width: int, detail: Detail) -> Moments:
        """The moments of no record; `width` is that of the features, the constant left out."""
        shape = second_shape(detail, n_class, width)
        second = None if shape is None else torch.zeros(shape, dtype=torch.float64)
        return Moments(Statistics.zeros(n_class, 1 + width), detail, second)

    def __add__(self, other: Moments) -> Moments:
        if self.detail is not other.detail:
            raise InputError(f"moments of different detail cannot be added: {self.detail} and {other.detail}")
        statistics = self.statistics + other.statistics
        if self.second is None or other.second is None:
            return Moments(statistics)
        return Moments(statistics, self.detail, self.second + other.second)

    def __mul__(self, weight: float) -> Moments:
        """The moments of records that count `weight` each."""
        second = None if self.second is None else self.second * weight
        return Moments(Statistics(self.statistics.sums * weight), self.detail, second)

    @property
    def n_class(self) -> int:
        """The number of classes, present or not."""
        return self.statistics.n_class

    @property
    def width(self) -> int:
        """The number of features, the constant left out."""
        return self.statistics.width - 1

    @property
    def arrays(self) -> tuple[Tensor, ...]:
        """What is sent: the sums (n_class, 1 + w), and the second moments where there are some."""
        return (self.statistics.sums,) if self.second is None else (self.statistics.sums, self.second)

    @staticmethod
    def from_arrays(arrays: tuple[Tensor, ...], detail: Detail) -> Moments:
        """The moments whose `arrays` these are."""
        return Moments(Statistics(arrays[0]), detail, arrays[1] if len(arrays) > 1 else None)

    def gram(self) -> Tensor:
        """The second moments of all records, (w, w)."""
        if self.second is None or self.detail is Detail.SQUARES:
            raise InputError(f"this head needs second moments of all features, found detail: {self.detail}")
        return unpack(self.second.sum(0), self.width)

    def within_scatter(self) -> Tensor:
        """The scatter around the class means, (w, w): second moments less sum_y n_y mu_y mu_y^T."""
        means, present = self.statistics.means()
        weighted = means[present, 1:] * self.statistics.counts[present, None]
        return self.gram() - weighted.mT @ means[present, 1:]

    def class_scatters(self) -> Tensor:
        """The scatter of each class around its own mean, (n_class, w, w)."""
        if self.second is None or self.detail is not Detail.CLASS_SECOND:
            raise InputError(f"this head needs the second moments of each class, found detail: {self.detail}")
        means, _ = self.statistics.means()
        outer = means[:, 1:, None] * means[:, None, 1:]
        return unpack(self.second, self.width) - self.statistics.counts[:, None, None] * outer

    def class_squares(self) -> Tensor:
        """The sum of squares around each class's own mean, feature by feature, (n_class, w)."""
        if self.second is None or self.detail is not Detail.SQUARES:
            raise InputError(f"this head needs the squares of each class, found detail: {self.detail}")
        means, _ = self.statistics.means()
        return self.second - self.statistics.counts[:, None] * means[:, 1:].square()


def second_shape(detail: Detail, n_class: int, width: int) -> tuple[int, int] | None:
    """The shape of the second moments of that detail; None where there are none."""
    if detail is Detail.MEANS:
        return None
    if detail is Detail.SQUARES:
        return (n_class, width)
    return (1 if detail is Detail.SECOND else n_class, triangle_entries(width))


def sensitivity(radius: float, detail: Detail) -> float:
    """How far one record with |phi| <= radius moves counts, sums and second moments together, in L2.

    Counts move by 1 and sums by R; packed second moments by |phi|^2 <= R^2 whatever phi is, squares by at most R^2
    (all of phi in one feature). So the pair moves by sqrt(1 + R^2 + R^4).
    """
    second = 0.0 if detail is Detail.MEANS else radius**4
    return math.sqrt(1 + radius**2 + second)


def _sum_second(phi: Tensor, labels: Tensor, n_class: int, detail: Detail) -> Tensor:
    """The second moments of some records, as their detail says."""
    if detail is Detail.SQUARES:
        return phi.new_zeros((n_class, phi.shape[1])).index_add_(0, labels, phi.square())
    if detail is Detail.SECOND:
        return pack(phi.mT @ phi)[None]
    packed = phi.new_zeros((n_class, triangle_entries(phi.shape[1])))
    for label in sorted(set(labels.tolist())):
        own = phi[labels == label]
        packed[label] = pack(own.mT @ own)
    return packed
