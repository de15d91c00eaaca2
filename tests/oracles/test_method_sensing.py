"""The measurement matrix against its dense self, its near-isometry on sparse vectors, and recovery."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlog.core.compressed_sensing import MeasurementMatrix, keep_largest, recover_vector
from fedlog.core.keys import Key
from fedlog.errors import InputError

ENTRIES, ROWS = 1200, 300


def sparse(support: int, seed: int, entries: int = ENTRIES) -> Tensor:
    generator = Key(seed).child("sparse").torch()
    vector = torch.zeros(entries, dtype=torch.float64)
    values = torch.randn(support, generator=generator, dtype=torch.float64)
    vector[torch.randperm(entries, generator=generator)[:support]] = values + values.sign()
    return vector


def dense(sensing: MeasurementMatrix) -> Tensor:
    """The matrix column by column, as products with the unit vectors."""
    return torch.stack([sensing.measure(column) for column in torch.eye(sensing.n_entries)], dim=1)


@pytest.mark.parametrize(("entries", "rows"), [(1, 1), (2, 1), (29, 26), (64, 64), (97, 10)])
def test_products_are_those_of_one_matrix_with_orthonormal_rows(entries: int, rows: int) -> None:
    sensing = MeasurementMatrix.from_seed(3, entries, rows)
    matrix = dense(sensing)
    identity = torch.eye(rows, dtype=torch.float64)
    assert torch.allclose(matrix @ matrix.T, identity, atol=1e-12)  # so the largest singular value is 1
    assert torch.allclose(
        torch.stack([sensing.multiply_transposed(row) for row in identity]), matrix, atol=1e-12
    )  # spread is the transpose of measure


def test_a_seed_makes_the_same_matrix_and_another_seed_another() -> None:
    vector = sparse(20, 0)
    one, same, other = (MeasurementMatrix.from_seed(seed, ENTRIES, ROWS).measure(vector) for seed in (4, 4, 5))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


@pytest.mark.parametrize("where", ["anywhere", "side by side", "evenly spaced"])
def test_sparse_vectors_keep_their_length_up_to_the_common_factor(where: str) -> None:
    # All vectors on a support at once: the singular values of its columns, scaled by sqrt(entries / rows).
    matrix = dense(MeasurementMatrix.from_seed(9, ENTRIES, ROWS)) * (ENTRIES / ROWS) ** 0.5
    generator = np.random.default_rng(1)
    for start in range(0, 200, 10):
        at = {
            "anywhere": generator.choice(ENTRIES, 20, replace=False),
            "side by side": np.arange(start, start + 20),
            "evenly spaced": (start + np.arange(20) * (ENTRIES // 20)) % ENTRIES,
        }[where]
        values = torch.linalg.svdvals(matrix[:, at])
        assert float(values.min()) > 0.5
        assert float(values.max()) < 1.5


@pytest.mark.parametrize("support", [1, 5, 20, 40])
@pytest.mark.parametrize("seed", range(5))
def test_a_sparse_vector_comes_back_with_its_support(support: int, seed: int) -> None:
    sensing, vector = MeasurementMatrix.from_seed(seed, ENTRIES, ROWS), sparse(support, seed)
    found = recover_vector(sensing, sensing.measure(vector).to(torch.float32), support)
    assert torch.equal(found != 0, vector != 0)
    assert float((found - vector).abs().max()) < 1e-4


def test_noise_in_the_measurements_stays_noise_in_the_vector() -> None:
    sensing, vector = MeasurementMatrix.from_seed(1, ENTRIES, ROWS), sparse(20, 1)
    noise = 0.01 * torch.randn(ROWS, generator=Key(2).torch(), dtype=torch.float64)
    found = recover_vector(sensing, sensing.measure(vector) + noise, 20)
    assert float((found - vector).norm()) < 5 * float(noise.norm())


def test_too_dense_a_vector_is_not_recovered_but_its_measurements_come_nearer() -> None:
    sensing, vector = MeasurementMatrix.from_seed(1, ENTRIES, ROWS), sparse(700, 1)
    measured = sensing.measure(vector)
    found = recover_vector(sensing, measured, 700)
    assert int(found.count_nonzero()) <= 700
    assert float((measured - sensing.measure(found)).norm()) < 0.01 * float(measured.norm())
    assert float(found @ vector) > 0


def test_edges() -> None:
    sensing = MeasurementMatrix.from_seed(1, 30, 10)
    assert not recover_vector(sensing, torch.zeros(10), 5).any()
    assert not recover_vector(sensing, torch.ones(10), 0).any()
    assert torch.isfinite(recover_vector(sensing, torch.ones(10), 30)).all()
    with pytest.raises(InputError, match="a vector with 30 entries must be 1 to 30, found: 31"):
        MeasurementMatrix.from_seed(1, 30, 31)


def test_the_largest_entries_are_kept() -> None:
    vector = torch.tensor([0.1, -3.0, 0.2, 2.0, -0.3], dtype=torch.float64)
    assert keep_largest(vector, 2).tolist() == [0.0, -3.0, 0.0, 2.0, 0.0]
    assert keep_largest(vector, 0).tolist() == [0.0] * 5
    assert keep_largest(vector, 9).tolist() == vector.tolist()


def test_nothing_of_the_matrix_is_stored_but_a_sign_and_a_row_number() -> None:
    entries = 400_000  # dense, its matrix would take 128 GB
    sensing = MeasurementMatrix.from_seed(1, entries, entries // 10)
    held = sum(t.element_size() * t.numel() for t in (sensing.signs, sensing.taken))
    assert held == 8 * (entries + entries // 10)
    assert sensing.measure(torch.ones(entries)).shape == (entries // 10,)
