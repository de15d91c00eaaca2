"""A body as a chain of stages over a stack of clients: the fast path for the paper's networks.

The engine uses it where `compile_body` found a block for every layer, and a slower path elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedlog.engine.training.block.convolve import ConvShape, conv_pool
from fedlog.engine.training.block.crops import Crops, crops_of
from fedlog.engine.training.block.layers import Flatten, Linear, batch_innermost

Masks = Mapping[str, Tensor]


class Stage(Protocol):
    """One step of the chain: a stacked map or stacked units in, the same out."""

    def __call__(self, params: Mapping[str, Tensor], values: Tensor, masks: Masks | None) -> Tensor:
        """The stage's output; differentiable in the parameters and the values."""
        ...


@dataclass(frozen=True)
class ConvStage:
    """Convolution, pooling, bias, ReLU and a multiplier per channel, in the order that is cheapest."""

    name: str
    shape: ConvShape
    has_bias: bool
    dropout: tuple[str, ...]

    def __call__(self, params: Mapping[str, Tensor], values: Tensor, masks: Masks | None) -> Tensor:
        """(clients, channels in, rows, columns, batch) -> (clients, channels out, rows, columns, batch)."""
        weight, bias = _parameters(self.name, self.has_bias, params, values.shape[0])
        maps = conv_pool(self.shape, values, weight, bias)
        for mask in _chosen(masks, self.dropout):
            maps = maps * mask.mT.contiguous()[:, :, None, None]
        return maps


@dataclass(frozen=True)
class LinearStage:
    """A linear layer, ReLU and a multiplier per unit."""

    name: str
    has_bias: bool
    rectify: bool
    dropout: tuple[str, ...]

    def __call__(self, params: Mapping[str, Tensor], values: Tensor, masks: Masks | None) -> Tensor:
        """(clients, batch, units in) -> (clients, batch, units out)."""
        weight, bias = _parameters(self.name, self.has_bias, params, values.shape[0])
        units: Tensor = Linear.apply(values, weight, bias, self.rectify)  # type: ignore[no-untyped-call]
        for mask in _chosen(masks, self.dropout):
            units = units * mask
        return units


@dataclass(frozen=True)
class FlattenStage:
    """From maps to units, in PyTorch's order: channels, rows, columns."""

    def __call__(self, params: Mapping[str, Tensor], values: Tensor, masks: Masks | None) -> Tensor:
        """(clients, channels, rows, columns, batch) -> (clients, batch, units)."""
        units: Tensor = Flatten.apply(values)  # type: ignore[no-untyped-call]
        return units


@dataclass(frozen=True)
class BlockNetwork:
    """A body for stacked clients. Inputs are gathered by `gather`, from a pool laid out once by `arrange`."""

    input_shape: tuple[int, ...]
    stages: tuple[Stage, ...]

    @property
    def takes_maps(self) -> bool:
        """Whether the first layer is a convolution, and records are images, not units."""
        return isinstance(self.stages[0], ConvStage)

    def arrange(self, images: Tensor) -> Tensor:
        """(n, *input_shape) -> (n, pixels)."""
        return images.flatten(1).contiguous()  # not reshape(n, -1): a worker's clients may have no record

    def gather(self, arranged: Tensor, positions: Tensor) -> Tensor:
        """The stacked batch of the records at `positions` (clients, batch)."""
        clients, batch = positions.shape
        records = arranged.index_select(0, positions.reshape(-1)).view(clients, batch, -1)
        if not self.takes_maps:
            return records
        return batch_innermost(records).view(clients, *self.input_shape, batch)

    def crops(self, black: Tensor, padding: int) -> Crops | None:
        """How crops are gathered from an arranged pool of images; None where units come in, which have no columns."""
        return crops_of(self.input_shape, black, padding) if self.takes_maps else None

    def features(self, params: Mapping[str, Tensor], batch: Tensor, masks: Masks | None) -> Tensor:
        """(clients, batch, width); differentiable in `params`, each (clients, *shape) or (1, *shape) if shared.

        `masks` holds each dropout layer's multiplier (clients, batch, channels or units), >= 0; None: evaluation.
        """
        values = batch
        for stage in self.stages:
            values = stage(params, values, masks)
        return values


def _chosen(masks: Masks | None, names: tuple[str, ...]) -> list[Tensor]:
    return [] if masks is None else [masks[name] for name in names]


def _parameters(name: str, has_bias: bool, params: Mapping[str, Tensor], clients: int) -> tuple[Tensor, Tensor | None]:
    prefix = f"{name}." if name else ""
    weight = params[f"{prefix}weight"]
    bias = params[f"{prefix}bias"] if has_bias else None
    if weight.shape[0] != clients:
        weight = weight.expand(clients, *weight.shape[1:])
    if bias is not None and bias.shape[0] != clients:
        bias = bias.expand(clients, *bias.shape[1:])
    return weight, bias
