"""The stacked version (block) of a convolution, with the pooling, ReLU and dropout layers after it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from fedlog.engine.training.block import library
from fedlog.engine.training.block.convolve import ConvShape, convolve_and_pool
from fedlog.engine.training.block.network import Masks, Params, Shape, find_parameter, get_parameter, select_masks
from fedlog.engine.training.block.registry import Block, Follower, PlacedLayer, register_block
from fedlog.models.masked_dropout import MaskedDropout


@dataclass(frozen=True)
class ConvStage:
    """A convolution with the pooling, ReLU and dropout layers after it, computed in the fastest order."""

    name: str
    shape: ConvShape
    dropout: tuple[str, ...]
    signals: bool  # 1-d: the maps have no rows

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """Map (clients, channels in, [rows,] columns, batch) to (clients, channels out, [rows,] columns, batch)."""
        (inputs,) = values
        weight = get_parameter(self.name, "weight", params, inputs.shape[0])
        bias = find_parameter(self.name, "bias", params, inputs.shape[0])
        if self.signals:
            inputs, weight = inputs.unsqueeze(2), weight.unsqueeze(3)
        maps = convolve_and_pool(self.shape, inputs, weight, bias)
        for mask in select_masks(masks, self.dropout):
            maps = maps * mask.mT.contiguous()[:, :, None, None]
        return maps.squeeze(2) if self.signals else maps


@register_block(nn.Conv1d, nn.Conv2d)
def _build_convolution(place: PlacedLayer) -> Block | None:
    """Build the stacked version (block) of a convolution with its pooling, ReLU and dropout; None if not supported."""
    layer = place.layer
    is_signal = isinstance(layer, nn.Conv1d)
    if not library.AVAILABLE or any(d != 1 for d in layer.dilation) or layer.padding_mode != "zeros":
        return None
    kernel, stride = ((1, *pair) if is_signal else pair for pair in (layer.kernel_size, layer.stride))
    rows, columns = (1, place.shape[1]) if is_signal else place.shape[1:]
    before, after = _read_paddings(layer, is_signal)
    shape = ConvShape(
        channels_in=layer.in_channels // layer.groups,
        channels_out=layer.out_channels // layer.groups,
        rows_in=rows,
        columns_in=columns,
        kernel_rows=kernel[0],
        kernel_columns=kernel[1],
        pad_top=before[0],
        pad_left=before[1],
        pad_bottom=after[0],
        pad_right=after[1],
        stride_rows=stride[0],
        stride_columns=stride[1],
        groups=layer.groups,
    )
    shape, absorbed, dropout = _absorb_followers(shape, place.followers, place.shape_out, is_signal)
    return Block(ConvStage(place.name, shape, dropout, is_signal), absorbed)


def _read_paddings(layer: Any, is_signal: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """The padding of a convolution: (top, left) and (bottom, right)."""
    if layer.padding == "same":
        whole = [size - 1 for size in layer.kernel_size]
        before, after = [one // 2 for one in whole], [one - one // 2 for one in whole]
    else:
        before = after = [0] * len(layer.kernel_size) if layer.padding == "valid" else list(layer.padding)
    lead = [0] if is_signal else []
    (top, left), (bottom, right) = lead + before, lead + after
    return (top, left), (bottom, right)


def _absorb_followers(
    shape: ConvShape, followers: tuple[Follower, ...], map_shape: Shape, is_signal: bool
) -> tuple[ConvShape, int, tuple[str, ...]]:
    """Add the pooling, ReLU and dropout layers after a convolution to its compiled call.

    Return the new sizes, how many layers were added, and the names of the dropout layers.
    """
    absorbed, dropout, pooled = 0, list[str](), False
    for follower in followers:
        layer = follower.layer
        if isinstance(layer, nn.ReLU):
            shape = replace(shape, rectify=True)
        elif isinstance(layer, MaskedDropout) and layer.per_channel:
            dropout.append(follower.name)
        elif (
            isinstance(layer, nn.MaxPool1d | nn.MaxPool2d)
            and not pooled
            and has_adjacent_windows(layer, is_signal, map_shape)
        ):
            rows, columns = read_pool_size(layer, is_signal)
            shape, pooled = replace(shape, pool_rows=rows, pool_columns=columns), True
        else:
            break
        absorbed += 1
    return shape, absorbed, tuple(dropout)


def has_adjacent_windows(layer: nn.MaxPool1d | nn.MaxPool2d, is_signal: bool, map_shape: Shape) -> bool:
    """Whether pooling windows have no overlap, gaps or padding, and fit into a map of shape `map_shape`."""
    size, stride, padding, dilation = (
        _make_pair(value) for value in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    )
    room = map_shape[1:] if not is_signal else (size[0], map_shape[1])
    fits = room[0] >= size[0] and room[1] >= size[1]
    usual = stride == size and padding == (0, 0) and dilation == (1, 1)
    return usual and fits and not layer.ceil_mode and not layer.return_indices


def read_pool_size(layer: nn.MaxPool1d | nn.MaxPool2d, is_signal: bool) -> tuple[int, int]:
    """Rows and columns of a pooling window; signals have one row."""
    rows, columns = _make_pair(layer.kernel_size)
    return (1 if is_signal else rows, columns)


def _make_pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])
