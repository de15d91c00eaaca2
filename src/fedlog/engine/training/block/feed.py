"""Batches for a stack of clients: records laid out once, gathered by position, cropped and flipped on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedlog.data.federation import Records
from fedlog.data.transforms import Augmentation, Transform
from fedlog.engine.training.block.crops import Crops
from fedlog.engine.training.tasks import Settings


class Stacked(Protocol):
    """A body for stacked clients: specialised blocks, or any stackable module through `vmap`."""

    def arrange(self, images: Tensor) -> Tensor:
        """A pool of inputs in the layout from which batches are gathered."""

    def gather(self, arranged: Tensor, positions: Tensor) -> Tensor:
        """The stacked batch of the records at these positions (clients, batch)."""

    def crops(self, black: Tensor, padding: int) -> Crops | None:
        """How crops are gathered by index from an arranged pool of images; None if they are not."""

    def features(self, params: Mapping[str, Tensor], batch: Tensor, masks: Mapping[str, Tensor] | None) -> Tensor:
        """(clients, batch, width)."""


class Feed:
    """The records of one pool that these clients hold."""

    def __init__(
        self, network: Stacked, records: Records, transform: Transform, held: Sequence[Tensor], settings: Settings
    ) -> None:
        self._network = network
        self._transform = transform
        self._dtype, self._device = settings.dtype, torch.device(settings.device)
        own: Tensor = torch.unique(torch.cat([*held, torch.zeros(0, dtype=torch.int64)]))
        # Position in the pool -> row among the own records; padding (position 0) may point anywhere.
        self._row = torch.zeros(len(records), dtype=torch.int64)
        self._row[own] = torch.arange(len(own))
        self._raw = records.inputs[own]
        self._arranged = network.arrange(transform.prepare(self._raw).to(self._device, self._dtype))
        self._crops = self._crops_by_index()

    def plain(self, positions: Tensor) -> Tensor:
        """The batch at these positions (clients, batch), as in evaluation."""
        return self._network.gather(self._arranged, self._row[positions].to(self._device))

    def training(self, positions: Tensor, crops: Tensor | None) -> Tensor:
        """The batch as in training; `crops` (3, clients, batch) holds each record's row, column and flip."""
        if crops is None:
            return self.plain(positions)
        if self._crops is not None:
            return self._crops.gather(self._arranged, self._row[positions], *crops)
        clients, batch = positions.shape
        rows, columns, flips = crops.flatten(1)
        raw = self._raw[self._row[positions].flatten()]
        inputs = self._transform.augment(raw, Augmentation(rows, columns, flips.bool())).to(self._device, self._dtype)
        arranged = self._network.arrange(inputs)
        return self._network.gather(arranged, torch.arange(clients * batch, device=self._device).view(clients, batch))

    def _crops_by_index(self) -> Crops | None:
        """The fast way to crop, where the network is made of blocks and takes images."""
        if not self._transform.augments:
            return None
        black = self._transform.prepare(torch.zeros(1, self._raw.shape[1], 1, 1, dtype=self._raw.dtype))
        return self._network.crops(black.flatten().to(self._dtype), self._transform.crop_padding)
