"""What local training is, whoever runs it: tasks, the draws of an epoch, and the rule for batches.

Both backends take every random number from `draw_epoch`, so the same key gives the same batches, dropout and crops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from fedlog.algorithms.shape import Phase, Work
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records
from fedlog.data.transforms import Augmentation, Transform, draw_augmentation
from fedlog.engine.clients import Client
from fedlog.models.body import Body, Params


@dataclass(frozen=True, eq=False)
class Task:
    """One client's training: from what, through which phases, with which randomness."""

    client: Client
    work: Work
    phases: tuple[Phase, ...]
    key: Key


class Pool(Enum):
    """Which records positions refer to."""

    TRAIN = "train"
    TEST = "test"

    def records(self, federation: Federation) -> Records:
        """That pool of the federation."""
        return federation.train if self is Pool.TRAIN else federation.test


@dataclass(frozen=True, eq=False)
class Look:
    """One client's evaluation-mode features are wanted: of which records, under which model."""

    client: Client
    params: Params
    pool: Pool
    positions: Tensor


class Backend(Protocol):
    """What runs tasks of clients that share a body."""

    @property
    def clients_at_once(self) -> int:
        """How many clients are best handed over together: only their activations are alive at a time."""

    def train(self, tasks: Sequence[Task]) -> list[Params]:
        """The trained models, in the order of the tasks."""

    def features(self, looks: Sequence[Look]) -> list[Tensor]:
        """(n, width) for each look, in evaluation mode."""


@dataclass(frozen=True)
class Settings:
    """How the engine computes; none of it changes what is computed beyond the order of floating-point sums."""

    batch_size: int = 10
    device: str = "cpu"
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, eq=False)
class EpochDraws:
    """The random numbers of one client's epoch, record by record in the order in which they are visited."""

    order: Tensor  # (n,) positions in the client's own list of records
    masks: dict[str, Tensor]  # dropout site -> (n, *shape), 0 or 1 / (1 - p)
    augmentation: Augmentation | None


def draw_epoch(key: Key, records: int, body: Body, transform: Transform, dtype: torch.dtype) -> EpochDraws:
    """Batch order, dropout multipliers and crops of one epoch, from one stream in this order."""
    generator = key.torch()
    order = torch.randperm(records, generator=generator)
    masks = {}
    for site in body.dropout:
        kept = torch.rand(records, *site.shape, generator=generator) >= site.p
        masks[site.name] = kept.to(dtype) / (1 - site.p)
    augmentation = draw_augmentation(transform, records, generator) if transform.augments else None
    return EpochDraws(order, masks, augmentation)
