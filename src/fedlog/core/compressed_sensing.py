"""Compressed sensing: measure a long sparse vector with a few random numbers, and recover it from them.

The matrix is a subsampled randomised Hartley transform, A = R H D: random signs D on the entries, the orthonormal
Hartley transform H (like Fourier's, but real: cosines plus sines), and a random choice R of its rows. A is never
stored: a product with A is one FFT, which needs memory for a few vectors. Both sides make the same A from one seed.
The rows of A are orthonormal, so its largest singular value is 1. On sparse vectors A is close to an isometry times
sqrt(rows / entries). Roughly the same holds for a Gaussian matrix divided by its largest singular value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.errors import InputError


@dataclass(frozen=True, eq=False)
class MeasurementMatrix:
    """The measurement matrix (rows, entries), stored as one sign per entry and the indices of the chosen rows."""

    signs: Tensor  # (entries,) float64, +1 or -1
    taken: Tensor  # (rows,) int64: which rows of the transform

    @staticmethod
    def from_seed(seed: int, n_entries: int, n_rows: int) -> MeasurementMatrix:
        """The matrix that this seed determines, so that sender and receiver make the same one."""
        if not 0 < n_rows <= n_entries:
            raise InputError(
                f"the number of measurements of a vector with {n_entries} entries must be 1 to {n_entries}, "
                f"found: {n_rows}"
            )
        generator = Key(seed).child("sensing").torch()
        signs = torch.randint(0, 2, (n_entries,), generator=generator).to(torch.float64) * 2 - 1
        return MeasurementMatrix(signs, torch.randperm(n_entries, generator=generator)[:n_rows])

    @property
    def n_entries(self) -> int:
        """The length of the vectors that are measured."""
        return len(self.signs)

    def measure(self, vector: Tensor) -> Tensor:
        """The measurements A x of a vector: (entries,) -> (rows,), float64."""
        return _hartley(vector.to(torch.float64) * self.signs)[self.taken]

    def multiply_transposed(self, measurements: Tensor) -> Tensor:
        """The product of the transposed matrix and measurements, A' y: (rows,) -> (entries,), float64."""
        placed = torch.zeros(self.n_entries, dtype=torch.float64)
        placed[self.taken] = measurements.to(torch.float64)
        return _hartley(placed) * self.signs


def _hartley(vector: Tensor) -> Tensor:
    """The orthonormal Hartley transform, sum_j x_j (cos + sin)(2 pi j k / n) / sqrt(n): symmetric, its own inverse."""
    spectrum: Tensor = torch.fft.fft(vector, norm="ortho")
    return spectrum.real - spectrum.imag


def keep_largest(vector: Tensor, count: int) -> Tensor:
    """The vector with all but its `count` entries of largest magnitude set to zero."""
    if count >= len(vector):
        return vector
    at = vector.abs().topk(count).indices
    return torch.zeros_like(vector).index_copy_(0, at, vector[at])


def recover_vector(matrix: MeasurementMatrix, measurements: Tensor, n_nonzero: int, iterations: int = 50) -> Tensor:
    """A vector (entries,) with at most `n_nonzero` non-zero entries that has about these measurements.

    Normalised iterative hard thresholding (Blumensath and Davies 2010): x <- keep_largest(x + t A'(y - A x)). The step
    t is the best one for the entries that are non-zero now, halved until the residual is sure to fall. The result is
    exact to 1e-7, the precision of float32 measurements, if the vector is sparse enough for the number of rows;
    otherwise it is a local minimum of the residual.
    """
    measurements = measurements.to(torch.float64)
    estimate = torch.zeros(matrix.n_entries, dtype=torch.float64)
    if n_nonzero <= 0 or not bool(measurements.any()):
        return estimate
    scale = float(measurements.norm())
    nonzero = keep_largest(matrix.multiply_transposed(measurements), n_nonzero) != 0
    for _ in range(iterations):
        residual = measurements - matrix.measure(estimate)
        direction = matrix.multiply_transposed(residual)
        restricted = direction * nonzero
        slope = float(restricted.square().sum())
        if float(residual.norm()) <= 1e-7 * scale or slope <= 1e-20 * scale**2:
            break
        step = slope / float(matrix.measure(restricted).square().sum())
        estimate, change, nonzero = _improve_estimate(matrix, estimate, direction, nonzero, step, n_nonzero)
        if change <= 1e-7 * scale:
            break
    return estimate


def _improve_estimate(
    matrix: MeasurementMatrix, estimate: Tensor, direction: Tensor, nonzero: Tensor, step: float, n_nonzero: int
) -> tuple[Tensor, float, Tensor]:
    """Move the estimate by `step` times `direction`, and keep its `n_nonzero` largest entries.

    `nonzero` marks the entries that are non-zero before. The step is halved until the residual is sure to fall.
    Returns the next estimate, its distance from the one before, and a mask of its non-zero entries.
    """
    while True:
        moved = keep_largest(estimate + step * direction, n_nonzero)
        change = moved - estimate
        length = float(change.norm())
        now_nonzero = moved != 0
        if length == 0 or torch.equal(now_nonzero, nonzero):
            return moved, length, now_nonzero
        # With a longer step the residual is no longer sure to fall when other entries become non-zero.
        if step <= 0.99 * length**2 / float(matrix.measure(change).square().sum()):
            return moved, length, now_nonzero
        step /= 2
