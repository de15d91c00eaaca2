"""Batches for a stack of clients: records laid out once, gathered by position, cropped and flipped on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedlog.data.federation import Records
from fedlog.data.transforms import Augmentation, Transform
from fedlog.engine.training.block.pixels import Pixels, pixels_of
from fedlog.engine.training.tasks import Settings


class Stacked(Protocol):
    """A body for stacked clients: specialised blocks, or any stackable module through `vmap`."""

    @property
    def takes_maps(self) -> bool:
        """Whether the batch lies innermost; or else records lie one behind the other."""

    def batch_shape(self, clients: int, batch: int) -> tuple[int, ...]:
        """The shape of a stacked batch."""

    def arrange(self, images: Tensor) -> Tensor:
        """A pool of inputs in the layout from which batches are gathered."""

    def gather(self, arranged: Tensor, positions: Tensor) -> Tensor:
        """The stacked batch of the records at these positions (clients, batch)."""

    def features(self, params: Mapping[str, Tensor], batch: Tensor, masks: Mapping[str, Tensor] | None) -> Tensor:
        """(clients, batch, width)."""


class PixelFeed:
    """A pool of 8-bit images or signals, left as it is."""

    def __init__(self, network: Stacked, pixels: Pixels) -> None:
        self._network = network
        self._pixels = pixels

    def plain(self, positions: Tensor) -> Tensor:
        """The batch at these positions (clients, batch), as in evaluation."""
        return self.training(positions, None)

    def training(self, positions: Tensor, crops: Tensor | None) -> Tensor:
        """The batch as in training; `crops` (3, clients, batch) holds each record's row, column and flip."""
        clients, batch = positions.shape
        shape = self._network.batch_shape(clients, batch)
        return self._pixels.gather(positions, crops, shape, self._network.takes_maps)


class ArrangedFeed:
    """The records of any pool that these clients hold, laid out once as the network reads them."""

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

    def plain(self, positions: Tensor) -> Tensor:
        """The batch at these positions (clients, batch), as in evaluation."""
        return self._network.gather(self._arranged, self._row[positions].to(self._device))

    def training(self, positions: Tensor, crops: Tensor | None) -> Tensor:
        """The batch as in training; `crops` (3, clients, batch) holds each record's row, column and flip."""
        if crops is None:
            return self.plain(positions)
        clients, batch = positions.shape
        rows, columns, flips = crops.flatten(1)
        raw = self._raw[self._row[positions].flatten()]
        inputs = self._transform.augment(raw, Augmentation(rows, columns, flips.bool())).to(self._device, self._dtype)
        arranged = self._network.arrange(inputs)
        return self._network.gather(arranged, torch.arange(clients * batch, device=self._device).view(clients, batch))


def make_feed(
    network: Stacked, records: Records, transform: Transform, held: Sequence[Tensor], settings: Settings
) -> PixelFeed | ArrangedFeed:
    """The fastest feed for the records of one pool that these clients hold."""
    pixels = pixels_of(records.inputs, transform, settings.dtype) if settings.device == "cpu" else None
    if pixels is not None:
        return PixelFeed(network, pixels)
    return ArrangedFeed(network, records, transform, held, settings)
