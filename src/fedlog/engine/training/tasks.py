"""What all backends share: tasks and their results, the random numbers of an epoch, and a stopwatch.

All backends take their random numbers from `draw_order_and_crops`, so with the same key they train on the same batches,
with the same dropout and crops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from fedlog.algorithms.interface import Exchange, Phase, Work
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records
from fedlog.data.transforms import Augmentation, Transform, draw_augmentation
from fedlog.engine.clients import Client
from fedlog.models.body import Body, Params
from fedlog.settings.training import Decay, Optimiser

PARTS = ("gather", "forward", "backward", "optimiser", "statistics", "head", "encode", "evaluate", "wait")
OTHER = "other"
Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Task:
    """The training of one client in one exchange, with the key for its random numbers."""

    client: Client
    work: Work
    """The model to start from, and what the loss needs besides batches."""
    phases: tuple[Phase, ...]
    """The parts of the training, one after another: which parameters are trained, how many epochs, with which loss."""
    key: Key
    moments: Params = field(default_factory=dict)
    """Adam's moments from an earlier `Fit`; empty: Adam starts with zeros."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of training one client: its parameters, and Adam's moments."""

    params: Params
    moments: Params = field(default_factory=dict)
    """Adam's moments by phase; empty unless they last for the whole run."""


class RecordPool(Enum):
    """The records that positions refer to: test records, or all others (for training and validation)."""

    TRAIN = "train"
    TEST = "test"

    def find_records(self, federation: Federation) -> Records:
        """The records of this pool in the federation."""
        return federation.train if self is RecordPool.TRAIN else federation.test


@dataclass(frozen=True, eq=False)
class FeatureRequest:
    """A request for the features of some records of one client: its model, and the records' positions in a pool."""

    client: Client
    params: Params
    pool: RecordPool
    positions: Tensor


class Backend(Protocol):
    """A way to train clients with the same body, and to compute the features of their records."""

    @property
    def clients_at_once(self) -> int:
        """The largest number of clients in one call of `train`; it limits the memory used."""

    def train(self, tasks: Sequence[Task]) -> list[Fit]:
        """Do these tasks, and return the result of each, in order."""

    def compute_features(self, requests: Sequence[FeatureRequest]) -> list[Tensor]:
        """The features (n, width) of each request, in evaluation mode."""


@dataclass(frozen=True)
class Settings:
    """The training settings that are the same for all clients, with the device and number type to compute with."""

    batch_size: int = 10
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    optimiser: Optimiser = field(default_factory=Optimiser)


@dataclass(frozen=True, eq=False)
class EpochDraws:
    """The random numbers of one client's epoch, in the order in which records are visited."""

    order: Tensor  # (n,) positions in the client's list of training records
    masks: dict[str, Tensor]  # dropout site -> (n, *shape), 0 or 1 / (1 - p)
    augmentation: Augmentation | None


def list_trained_parameters(params: Params, phase: Phase, body: Body) -> list[str]:
    """The names of the parameters that the phase trains, sorted, so that saved Adam moments match after a reload."""
    return sorted(name for name in params if name in phase.trained and name not in body.buffers | body.untrained_params)


def make_adam_arguments(rule: Optimiser, learning_rate: float) -> dict[str, Any]:
    """The arguments of PyTorch's function `adamw` that follow from the settings."""
    return {
        "lr": learning_rate,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": rule.weight_decay,
        "amsgrad": False,
        "maximize": False,
    }


def set_learning_rates(exchange: Exchange, rule: Optimiser, round_number: int, rounds: int) -> Exchange:
    """The exchange with the learning rates of this round, which are lower in later rounds if `rule` has a decay."""
    if rule.decay is Decay.NONE:
        return exchange
    left = (1 + math.cos(math.pi * (round_number - 1) / rounds)) / 2
    phases = [replace(phase, learning_rate=left * phase.learning_rate) for phase in exchange.phases]
    return replace(exchange, phases=tuple(phases))


def read_moments(moments: Params, phase: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """Adam's first and second moments (flattened) and its number of steps for this phase; None if none are saved."""
    if f"{phase}/steps" not in moments:
        return None
    return moments[f"{phase}/first"], moments[f"{phase}/second"], moments[f"{phase}/steps"]


def name_moments(phase: int, first: Tensor, second: Tensor, steps: Tensor) -> Params:
    """Adam's moments and number of steps for this phase, under the names that `read_moments` looks for."""
    return {f"{phase}/first": first, f"{phase}/second": second, f"{phase}/steps": steps}


def draw_epoch(key: Key, records: int, body: Body, transform: Transform, dtype: torch.dtype) -> EpochDraws:
    """The random numbers of one client's epoch: the order of the records, dropout multipliers and crops."""
    uniform = {site.name: torch.empty(records, *site.shape) for site in body.dropout}
    order, augmentation = draw_order_and_crops(key, records, transform, uniform.values())
    masks = {site.name: make_dropout_multipliers(uniform[site.name], site.p, dtype) for site in body.dropout}
    return EpochDraws(order, masks, augmentation)


def draw_order_and_crops(
    key: Key, records: int, transform: Transform, uniform: Iterable[Tensor]
) -> tuple[Tensor, Augmentation | None]:
    """Draw the order of the records and the crops of one client's epoch, and fill `uniform` with numbers from 0 to 1.

    `uniform` has a tensor (records, *shape) for each dropout layer. All numbers come from one random stream: first the
    order, then `uniform`, then the crops.
    """
    generator = key.torch()
    order = torch.randperm(records, generator=generator)
    for each in uniform:
        each.uniform_(generator=generator)
    return order, draw_augmentation(transform, records, generator) if transform.augments else None


def make_dropout_multipliers(uniform: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    """The multipliers of a dropout layer with probability `p`: 0 where `uniform` is below p, else 1 / (1 - p)."""
    return (uniform >= p).to(dtype) / (1 - p)


class Stopwatch:
    """Measures the seconds of each part of a round since the last call of `read_and_reset`.

    Time in a nested part counts for the outer part: forward passes during evaluation count as evaluation.
    """

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._runs = False

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the time of the `with` block to this part; inside the block of another part, do nothing."""
        if self._runs:
            yield
            return
        self._runs, start = True, time.perf_counter()
        try:
            yield
        finally:
            self._runs = False
            self._seconds[part] += time.perf_counter() - start

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add `seconds`, by part, that were measured elsewhere; do nothing while a part is being timed here."""
        if not self._runs:
            for part, own in seconds.items():
                self._seconds[part] += own

    def time_items(self, part: str, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, and add the time that it takes to make them to this part."""
        iterator = iter(items)
        while True:
            with self.time(part):
                item = next(iterator, None)
            if item is None:
                return
            yield item

    def read_and_reset(self) -> dict[str, float]:
        """Return the seconds of each part, and reset them to 0."""
        taken, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return taken


CLOCK = Stopwatch()  # the only one in this process


def combine_times(
    total: float, server: Mapping[str, float], workers: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """A round's `total` seconds, by part of the work: the server's plus the mean over workers; the rest is `other`."""
    mean = {part: sum(times[part] for times in workers) / len(workers) if workers else 0.0 for part in PARTS}
    parts = {part: server[part] + mean[part] for part in PARTS}
    # While the server works its workers wait: that time is counted once, as the server's.
    parts["wait"] = max(0.0, parts["wait"] - sum(server.values())) if workers else 0.0
    return {**parts, OTHER: max(0.0, total - sum(parts.values()))}
