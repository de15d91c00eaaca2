"""Facts about the real data sets, where they are on this machine: `FEDLOG_DATA` names their folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.public_data_sets import PUBLIC_DATA_SETS, find_data_folder, find_file_state
from fedlog.data.undivided_data import load_cifar10, load_cifar100, load_har, load_mnist

pytestmark = pytest.mark.slow


def needs(name: str) -> None:
    if not all(find_file_state(file, find_data_folder()).usable for file in PUBLIC_DATA_SETS[name].files):
        pytest.skip(f"{name} is not in {find_data_folder()}")


def test_mnist_has_its_known_labels_and_the_papers_partition() -> None:
    needs("mnist")
    pools = load_mnist(find_data_folder())
    # Published class counts of the training set; its first labels; the mean and std that everybody uses.
    assert torch.bincount(pools.train.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert pools.train.labels[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    prepared = pools.transform.prepare(pools.train.inputs).double()
    assert abs(float(prepared.mean())) < 1e-3
    assert abs(float(prepared.std()) - 1) < 1e-3
    federation = load_federation(DataSpec("mnist"))
    assert (len(federation.train), len(federation.test), len(federation.shards)) == (3000, 10000, 50)
    assert torch.equal(federation.train.inputs, pools.train.inputs[:3000])


@pytest.mark.parametrize(("name", "n_class"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_is_balanced_and_its_normalisation_is_that_of_the_training_set(name: str, n_class: int) -> None:
    needs(name)
    pools = {"cifar10": load_cifar10, "cifar100": load_cifar100}[name](find_data_folder())
    assert torch.bincount(pools.train.labels).tolist() == [50000 // n_class] * n_class
    assert torch.bincount(pools.test.labels).tolist() == [10000 // n_class] * n_class
    pixels = pools.train.inputs.numpy() / np.float32(255)
    np.testing.assert_allclose(pixels.mean((0, 2, 3), dtype=np.float64), pools.transform.mean, atol=6e-5)
    np.testing.assert_allclose(pixels.std((0, 2, 3), dtype=np.float64), pools.transform.std, atol=6e-5)
    federation = load_federation(DataSpec(name))
    assert {len(shard.train) for shard in federation.shards} == {500}
    assert {len(shard.test) for shard in federation.shards} == {100}


def test_har_has_thirty_people_in_two_halves() -> None:
    needs("har")
    pools = load_har(find_data_folder())
    assert (len(pools.train), len(pools.test)) == (7352, 2947)
    assert pools.train.users is not None
    assert pools.test.users is not None
    assert len(pools.train.users.unique()) == 21
    assert len(pools.test.users.unique()) == 9
    federation = load_federation(DataSpec("har"))
    assert len(federation.train) + len(federation.test) == 10299
    assert len(federation.shards) == 6
