"""The two workloads of the benchmarks, on real images if the data folder has them, else on synthetic images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fedlog.algorithms.fedlog import make_random_head
from fedlog.core.keys import Key
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import Transform
from fedlog.errors import InputError
from fedlog.models.networks import cifar_cnn, mnist_cnn


@dataclass(frozen=True, eq=False)
class Workload:
    """One setting to time: data, batch size, epochs and body."""

    name: str
    federation: Federation
    epochs: int
    batch_size: int
    learning_rate: float
    width: int
    real: bool
    make_body: Callable[[], nn.Module]  # a fresh body as a plain module

    def first_head(self) -> Tensor:
        """The random first head that every variant starts from."""
        return make_random_head(self.federation.n_class, self.width, 5.0, 0)


def load_workload(name: str, clients: int | None = None) -> Workload:
    """`mnist`: 50 clients x 60 images, batch 10, 5 epochs. `cifar10`: 100 x 500, batch 50, 1 epoch, crop and flip."""
    federation, real = load_data(name, clients)
    if name == "mnist":
        return Workload(name, federation, 5, 10, 0.001, 50, real, mnist_cnn)
    return Workload(name, federation, 1, 50, 0.0005, 100, real, cifar_cnn)


def keep_first_clients(base: Workload, clients: int | None) -> Workload:
    """The workload with only its first clients; with all clients if `clients` is None."""
    return replace(base, federation=replace(base.federation, shards=base.federation.shards[:clients]))


def repeat_clients(base: Workload, clients: int, train: int, test: int) -> Workload:
    """The workload with this many clients; several clients may have the same images."""
    key = Key(0).child("repeated")
    pools = base.federation
    shards = []
    for at in range(clients):
        generator = key.child(at).torch()
        own = torch.randint(0, len(pools.train), (train,), generator=generator)
        judged = torch.randint(0, len(pools.test), (test,), generator=generator)
        shards.append(Shard(f"{at:05d}", own, judged, torch.zeros(0, dtype=torch.int64)))
    federation = Federation(
        pools.name,
        pools.n_class,
        pools.input_shape,
        pools.train,
        pools.test,
        tuple(shards),
        pools.transform,
        pools.class_names,
    )
    return replace(base, federation=federation)


def load_data(name: str, clients: int | None) -> tuple[Federation, bool]:
    """The data set, and whether it is the real one."""
    try:
        return load_federation(DataSpec(name, clients=clients)), True
    except InputError:
        return _make_up_federation(name, clients), False


def _make_up_federation(name: str, clients: int | None) -> Federation:
    """Make a synthetic data set with the shapes and counts of the real one: noise around one pattern per class."""
    shape, train, test, clients, transform = (
        ((1, 28, 28), 3000, 10000, clients or 50, Transform((0.1307,), (0.3081,)))
        if name == "mnist"
        else ((3, 32, 32), 50000, 10000, clients or 100, Transform((0.5,) * 3, (0.25,) * 3, crop_padding=4, flip=True))
    )
    generator = Key(0).child("made up", name).torch()
    patterns = torch.randint(0, 256, (10, *shape), generator=generator)

    def records(count: int) -> Records:
        labels = torch.arange(count) % 10
        noise = torch.randint(-128, 128, (count, *shape), generator=generator)
        return Records((patterns[labels] + noise).clamp(0, 255).to(torch.uint8), labels)

    pools = records(train), records(test)
    parts = [torch.arange(len(pool)).chunk(clients) for pool in pools]
    shards = tuple(
        Shard(f"{at:03d}", parts[0][at], parts[1][at], torch.zeros(0, dtype=torch.int64)) for at in range(clients)
    )
    names = tuple(str(label) for label in range(10))
    return Federation(f"made-up {name}", 10, shape, *pools, shards, transform, names)
