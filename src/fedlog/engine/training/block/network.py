"""A body for stacked clients as a list of steps, which `compile_module` makes, and the feeds that give it batches.

Records are arranged in memory once; batches are then gathered by position, with crops and flips.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from fedlog.data.federation import Records
from fedlog.data.transforms import Augmentation, Transform
from fedlog.engine.training.block.generic import VmapNetwork
from fedlog.engine.training.block.pixels import PixelPool, gather_batch_innermost, make_pixel_pool
from fedlog.engine.training.tasks import Settings

Shape = tuple[int, ...]
"""The shape of one record. Stacked: units are (clients, batch, units), other shapes maps (clients, *shape, batch)."""
Params = Mapping[str, Tensor]
Masks = Mapping[str, Tensor]


class Stage(Protocol):
    """One step of a stacked network: a function from stacked values to stacked values."""

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The stage's output, differentiable in the parameters and the values; `masks` is None in evaluation."""
        ...


def get_parameter(layer: str, name: str, params: Params, clients: int) -> Tensor:
    """The parameter `name` of a layer, (clients, *shape); a parameter that all clients share is expanded."""
    value = params[f"{layer}.{name}" if layer else name]
    return value if value.shape[0] == clients else value.expand(clients, *value.shape[1:])


def find_parameter(layer: str, name: str, params: Params, clients: int) -> Tensor | None:
    """The parameter `name` of a layer, (clients, *shape); None if the layer has no such parameter."""
    return get_parameter(layer, name, params, clients) if (f"{layer}.{name}" if layer else name) in params else None


def name_weight_and_bias(layer: str) -> tuple[str, str]:
    """The full names of a layer's weight and bias."""
    return (f"{layer}.weight", f"{layer}.bias") if layer else ("weight", "bias")


def select_masks(masks: Masks | None, names: tuple[str, ...]) -> list[Tensor]:
    """The multipliers of these dropout layers; an empty list in evaluation."""
    return [] if masks is None else [masks[name] for name in names]


BATCH_OF_A_BLOCKED_TRANSPOSE = 24


def move_batch_innermost(records: Tensor) -> Tensor:
    """Move the batch to the last axis: (clients, batch, units) -> contiguous (clients, units, batch)."""
    clients, batch, units = records.shape
    if batch < BATCH_OF_A_BLOCKED_TRANSPOSE:
        return records.mT.contiguous()
    # PyTorch has a fast transpose only for two dimensions; for wide batches it is four times faster.
    turned = records.new_empty(clients, units, batch)
    for client in range(clients):
        turned[client].copy_(records[client].t())
    return turned


@dataclass(frozen=True, eq=False)
class StageCall:
    """A stage with the numbers (slots) of the values that it reads and writes, and of those to free after it."""

    stage: Stage
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...] = ()


def find_repeated_layers(steps: Iterable[StageCall]) -> frozenset[str]:
    """The names of the layers that several steps compute: modules that the body calls more than once.

    Such layers need autograd, because only autograd adds up the gradients of all calls of a layer.
    """
    names = [name for step in steps if (name := getattr(step.stage, "name", None)) is not None]
    return frozenset(name for name in names if names.count(name) > 1)


@dataclass(frozen=True, eq=False)
class BlockNetwork:
    """A body for stacked clients. `arrange` lays out a pool of records once, and `gather` takes batches from it."""

    input_shape: tuple[int, ...]
    takes_maps: bool
    """Whether inputs are maps (channels, rows, columns) and not vectors."""
    steps: tuple[StageCall, ...]
    output: int
    without_block: tuple[str, ...] = ()
    """The operations without a block, which `vmap` or the loop computes."""
    numbers_per_record: int = 1
    """How many numbers one record has in all values between the stages, for the use of the cache."""
    chained: tuple[StageCall, ...] = ()
    """The steps with neighbours joined into chains; empty if there are no chains."""
    is_plain: bool = False
    """Whether all layers are linear layers or convolutions without padding and strides; blocks are then the fastest."""

    def compute_batch_shape(self, clients: int, batch: int) -> tuple[int, ...]:
        """The shape of a batch: (clients, *input_shape, batch) for maps, (clients, batch, units) for vectors."""
        return (clients, *self.input_shape, batch) if self.takes_maps else (clients, batch, prod(self.input_shape))

    def arrange(self, images: Tensor) -> Tensor:
        """The records in the layout that `gather` reads, (n, *input_shape) -> (n, pixels)."""
        return images.flatten(1).contiguous()  # not reshape(n, -1): a worker's clients may have no record

    def gather(self, arranged: Tensor, positions: Tensor) -> Tensor:
        """The batch of the records at `positions` (clients, batch), in the shape of `compute_batch_shape`."""
        clients, batch = positions.shape
        found = gather_batch_innermost(arranged, positions) if self.takes_maps else None
        if found is None:
            records = arranged.index_select(0, positions.reshape(-1)).view(clients, batch, -1)
            if not self.takes_maps:
                return records
            found = move_batch_innermost(records)
        return found.view(clients, *self.input_shape, batch)

    def compute_features(self, params: Mapping[str, Tensor], batch: Tensor, masks: Masks | None) -> Tensor:
        """The features (clients, batch, width), differentiable in `params`.

        Each parameter is (clients, *shape), or (1, *shape) if the clients share it. `masks` has each dropout layer's
        multiplier (clients, batch, channels or units), >= 0; None means evaluation, without dropout.
        """
        values = {0: batch}
        for step in self.chained or self.steps:
            found = step.stage(params, masks, *(values[at] for at in step.reads))
            for at in step.frees:
                del values[at]
            values |= zip(step.writes, found if isinstance(found, tuple) else (found,), strict=True)
        return values[self.output]


@dataclass(frozen=True, eq=False)
class StackedBody:
    """A body's stacked networks: one for training, with masks, and one for evaluation."""

    training: BlockNetwork
    evaluating: BlockNetwork

    def compute_features(self, params: Mapping[str, Tensor], batch: Tensor, masks: Masks | None) -> Tensor:
        """The features (clients, batch, width)."""
        network = self.evaluating if masks is None else self.training
        return network.compute_features(params, batch, masks)


Stacked = StackedBody | VmapNetwork
"""A body for stacked clients: networks of blocks, or any module through `vmap`."""
Layout = BlockNetwork | VmapNetwork
"""What decides how batches lie in memory."""


class PixelFeed:
    """Feeds batches from a pool of 8-bit images or signals, without converting the pool."""

    def __init__(self, network: Layout, pixels: PixelPool) -> None:
        self._network = network
        self._pixels = pixels

    def gather(self, positions: Tensor, crops: Tensor | None = None) -> Tensor:
        """The batch of the records at `positions` (clients, batch).

        `crops` (3, clients, batch) has the row, column and flip of each record; None in evaluation.
        """
        clients, batch = positions.shape
        shape = self._network.compute_batch_shape(clients, batch)
        return self._pixels.gather(positions, crops, shape, self._network.takes_maps)


class ArrangedFeed:
    """Feeds batches to a network; the clients' records are put into the network's memory layout once, at the start."""

    def __init__(
        self, network: Layout, records: Records, transform: Transform, positions: Sequence[Tensor], settings: Settings
    ) -> None:
        self._network = network
        self._transform = transform
        self._dtype, self._device = settings.dtype, torch.device(settings.device)
        own: Tensor = torch.unique(torch.cat([*positions, torch.zeros(0, dtype=torch.int64)]))
        # The row of each position of the pool in `_raw`; padding (position 0) may point to any row.
        self._row = torch.zeros(len(records), dtype=torch.int64)
        self._row[own] = torch.arange(len(own))
        self._raw = records.inputs[own]
        self._arranged = network.arrange(transform.prepare(self._raw).to(self._device, self._dtype))

    def gather(self, positions: Tensor, crops: Tensor | None = None) -> Tensor:
        """The batch of the records at `positions` (clients, batch), cropped and flipped as in `PixelFeed`."""
        if crops is None:
            return self._network.gather(self._arranged, self._row.take(positions).to(self._device))
        clients, batch = positions.shape
        top, left, flips = crops.flatten(1)
        raw = self._raw[self._row[positions].flatten()]
        inputs = self._transform.augment(raw, Augmentation(top, left, flips.bool())).to(self._device, self._dtype)
        arranged = self._network.arrange(inputs)
        return self._network.gather(arranged, torch.arange(clients * batch, device=self._device).view(clients, batch))


def choose_feed(
    network: Stacked, records: Records, transform: Transform, positions: Sequence[Tensor], settings: Settings
) -> PixelFeed | ArrangedFeed:
    """Choose the fastest way to gather batches from a pool of records.

    Each tensor in `positions` has the positions, in the pool, of records that a client uses.
    """
    layout = network.training if isinstance(network, StackedBody) else network  # the same in evaluation
    pixels = make_pixel_pool(records.inputs, transform, settings.dtype) if settings.device == "cpu" else None
    if pixels is not None:
        return PixelFeed(layout, pixels)
    return ArrangedFeed(layout, records, transform, positions, settings)
