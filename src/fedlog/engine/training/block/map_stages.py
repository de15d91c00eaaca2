"""The stacked versions (blocks) of pooling and normalisation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlog.engine.training.block import library
from fedlog.engine.training.block.conv_stages import has_adjacent_windows, read_pool_size
from fedlog.engine.training.block.map_passes import NormShape, Pair, PoolFunction, Span, Windows, normalise
from fedlog.engine.training.block.network import Masks, Params, find_parameter, get_parameter
from fedlog.engine.training.block.registry import Block, PlacedLayer, register_block
from fedlog.engine.training.block.trace import SpatialMean


@dataclass(frozen=True, eq=False)
class PoolStage:
    """Pooling: the maximum or the mean over windows."""

    windows: Windows
    signals: bool  # 1-d: the maps have no rows

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """The pooled maps (clients, channels, [rows,] columns, batch)."""
        inputs = values[0].unsqueeze(2) if self.signals else values[0]
        pooled: Tensor = PoolFunction.apply(inputs, self.windows)  # type: ignore[no-untyped-call]
        return pooled.squeeze(2) if self.signals else pooled


@register_block(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d)
def _build_pooling(place: PlacedLayer) -> Block | None:
    """Build the stacked version (block) of maximum or mean pooling; None if the dilation is not 1."""
    layer, is_signal = place.layer, isinstance(place.layer, nn.MaxPool1d | nn.AvgPool1d)
    largest = isinstance(layer, nn.MaxPool1d | nn.MaxPool2d)
    if not library.AVAILABLE or len(place.shape) != (2 if is_signal else 3):
        return None
    if largest and (set(_expand_to_axes(layer.dilation, is_signal)) != {1} or layer.return_indices):
        return None
    sizes, outputs = _add_row_axis(place.shape, is_signal), _add_row_axis(place.shape_out, is_signal)
    kernels, strides = (_expand_to_axes(value, is_signal) for value in (layer.kernel_size, layer.stride))
    paddings = _expand_to_axes(layer.padding, is_signal, rows=0)
    axes = [_find_window_spans(*axis) for axis in zip(sizes, outputs, kernels, strides, paddings, strict=True)]
    rows, columns = ([(max(a, 0), min(b, size)) for a, b in spans] for spans, size in zip(axes, sizes, strict=True))
    divisors = None
    if not largest:
        counted = axes if layer.count_include_pad else (rows, columns)
        down, across = (torch.tensor([b - a for a, b in spans], dtype=torch.float64) for spans in counted)
        override = getattr(layer, "divisor_override", None)
        divisors = torch.full((len(rows), len(columns)), float(override)) if override else down[:, None] * across
        divisors = divisors.double()
    return Block(PoolStage(Windows(sizes, tuple(rows), tuple(columns), divisors), is_signal))


def _find_window_spans(size: int, outputs: int, kernel: int, stride: int, padding: int) -> list[Span]:
    """The (start, end) of each pooling window along one axis; no window ends after the end of the padding."""
    starts = [at * stride - padding for at in range(outputs)]
    return [(start, min(start + kernel, size + padding)) for start in starts]


def _add_row_axis(shape: tuple[int, ...], is_signal: bool) -> Pair:
    return (1, shape[1]) if is_signal else (shape[1], shape[2])


def _expand_to_axes(value: int | tuple[int, ...], is_signal: bool, rows: int = 1) -> Pair:
    """A kernel size, stride or padding as (rows, columns); a signal has no rows, so `rows` is used for it."""
    if isinstance(value, int):
        return (rows, value) if is_signal else (value, value)
    return (rows, value[0]) if is_signal else (value[0], value[1])


@register_block(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
def _build_adaptive_pooling(place: PlacedLayer) -> Block | None:
    """Build the stacked version (block) of adaptive mean pooling to any output size."""
    is_signal = isinstance(place.layer, nn.AdaptiveAvgPool1d)
    if not library.AVAILABLE or len(place.shape) != (2 if is_signal else 3):
        return None
    sizes, outputs = _add_row_axis(place.shape, is_signal), _add_row_axis(place.shape_out, is_signal)
    rows, columns = (
        tuple((at * size // count, ceil((at + 1) * size / count)) for at in range(count))
        for size, count in zip(sizes, outputs, strict=True)
    )
    down, across = (torch.tensor([b - a for a, b in spans], dtype=torch.float64) for spans in (rows, columns))
    return Block(PoolStage(Windows(sizes, rows, columns, down[:, None] * across), is_signal))


@dataclass(frozen=True)
class SpatialMeanStage:
    """The mean of every channel over all positions."""

    keeps_axes: bool

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """Average over all positions: (clients, channels, *space, batch) -> (clients, batch, channels).

        With `keeps_axes` the result is a map with one position: (clients, channels, 1, ..., batch).
        """
        (maps,) = values
        means = maps.flatten(2, -2).mean(2)
        return means.view(*means.shape[:2], *(1,) * (maps.ndim - 3), -1) if self.keeps_axes else means.mT


@register_block(SpatialMean)
def _build_spatial_mean(place: PlacedLayer) -> Block | None:
    return Block(SpatialMeanStage(len(place.shape_out) > 1))


@dataclass(frozen=True)
class MapNormStage:
    """Normalisation of maps, with a factor and a shift for each channel, then pooling and ReLU as in `shape`."""

    name: str
    shape: NormShape

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """The normalised maps, smaller if they are pooled."""
        (maps,) = values
        weight, bias = (find_parameter(self.name, own, params, maps.shape[0]) for own in ("weight", "bias"))
        return normalise(self.shape, maps, weight, bias)


@dataclass(frozen=True)
class UnitNormStage:
    """Normalisation of vectors (units) in groups, with a factor and a shift for each unit."""

    name: str
    groups: int
    epsilon: float

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """The normalised vectors (clients, batch, units)."""
        (units,) = values
        weight, bias = (find_parameter(self.name, own, params, units.shape[0]) for own in ("weight", "bias"))
        grouped = units.reshape(*units.shape[:2], self.groups, -1)
        found = functional.layer_norm(grouped, grouped.shape[-1:], eps=self.epsilon).view(units.shape)
        if weight is None:
            return found
        return found * weight[:, None] if bias is None else torch.addcmul(bias[:, None], found, weight[:, None])


def _absorb_followers(shape: NormShape, place: PlacedLayer) -> tuple[NormShape, int]:
    """Add the pooling and ReLU layers after a normalisation to its sizes; also return how many layers were added."""
    is_signal, absorbed = len(place.shape) == 2, 0
    for follower in place.followers:
        layer = follower.layer
        if isinstance(layer, nn.ReLU):
            shape = replace(shape, rectify=True)
        elif isinstance(layer, nn.MaxPool1d if is_signal else nn.MaxPool2d) and _can_pool(
            shape, layer, is_signal, place
        ):
            rows, columns = read_pool_size(layer, is_signal)
            shape = replace(shape, pool_rows=rows, pool_columns=columns)
        else:
            break
        absorbed += 1
    return shape, absorbed


def _can_pool(shape: NormShape, layer: nn.MaxPool1d | nn.MaxPool2d, is_signal: bool, place: PlacedLayer) -> bool:
    """Whether the normalisation can also compute this pooling.

    It can if it computes no other pooling yet, and if the windows have no overlaps or gaps.
    """
    return not shape.has_pooling and has_adjacent_windows(layer, is_signal, place.shape)


@register_block(nn.GroupNorm)
def _build_group_norm(place: PlacedLayer) -> Block | None:
    """Build the stacked version (block) of group normalisation; for maps it includes the pooling and ReLU after it."""
    layer, channels = place.layer, place.shape[0]
    if len(place.shape) == 1:
        return Block(UnitNormStage(place.name, layer.num_groups, layer.eps))
    if not library.AVAILABLE:
        return None
    rows, columns = prod(place.shape[1:-1]), place.shape[-1]
    shape = NormShape(layer.num_groups, channels // layer.num_groups, rows, columns, layer.eps, False)
    shape, absorbed = _absorb_followers(shape, place)
    return Block(MapNormStage(place.name, shape), absorbed)


@register_block(nn.LayerNorm)
def _build_layer_norm(place: PlacedLayer) -> Block | None:
    """Build the stacked version (block) of layer normalisation; None if it does not normalise whole records."""
    layer = place.layer
    if tuple(layer.normalized_shape) != place.shape:
        return None
    if len(place.shape) == 1:
        return Block(UnitNormStage(place.name, 1, layer.eps))
    if not library.AVAILABLE:
        return None
    rectify = bool(place.followers) and isinstance(place.followers[0].layer, nn.ReLU)
    return Block(MapNormStage(place.name, NormShape(1, prod(place.shape), 1, 1, layer.eps, rectify)), int(rectify))


@dataclass(frozen=True)
class FrozenNormStage:
    """Batch normalisation by fixed running statistics: a factor and a shift for each channel."""

    name: str
    epsilon: float

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """The normalised values, of the same shape."""
        (inputs,) = values
        clients = inputs.shape[0]
        weight, bias = (find_parameter(self.name, own, params, clients) for own in ("weight", "bias"))
        mean, variance = (get_parameter(self.name, own, params, clients) for own in ("running_mean", "running_var"))
        scale = torch.rsqrt(variance + self.epsilon)
        slope = scale if weight is None else scale * weight
        offset = -mean * slope if bias is None else bias - mean * slope
        if inputs.ndim == 3:  # units
            return torch.addcmul(offset[:, None], inputs, slope[:, None])
        axes = (*slope.shape, *(1,) * (inputs.ndim - 2))
        return torch.addcmul(offset.view(axes), inputs, slope.view(axes))


@register_block(nn.BatchNorm1d, nn.BatchNorm2d)
def _build_frozen_norm(place: PlacedLayer) -> Block | None:
    """Build the stacked version (block) of batch normalisation in evaluation mode; None if it uses batch statistics."""
    layer: Any = place.layer
    if layer.training or layer.running_mean is None:
        return None
    return Block(FrozenNormStage(place.name, layer.eps))
