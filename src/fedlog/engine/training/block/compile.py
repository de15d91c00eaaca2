"""From an `nn.Sequential` of standard layers to a `BlockNetwork`: which layers go together in one stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from fedlog.engine.training.block import convolve
from fedlog.engine.training.block.convolve import ConvShape
from fedlog.engine.training.block.network import BlockNetwork, ConvStage, FlattenStage, LinearStage, Stage
from fedlog.models.masking import MaskedDropout

Named = tuple[str, nn.Module]


def compile_body(module: nn.Module, input_shape: Sequence[int]) -> BlockNetwork | None:
    """The stacked network that computes what `module` does, or None if one of its layers has no block.

    Known: `Conv2d` (stride 1, no padding) followed by `ReLU`, dropout per channel and at most one `MaxPool2d` (stride
    equal to its size), in any order; `Flatten`; `Linear` followed by `ReLU` and dropout, in any order.
    """
    if not isinstance(module, nn.Sequential):
        return None
    # Not `named_children`: it skips the second place of a layer that stands in two.
    places = module._modules.items()
    layers = [(name, layer) for name, layer in places if layer is not None and not isinstance(layer, nn.Identity)]
    if len(list(module.parameters())) < sum(len(list(layer.parameters())) for _, layer in layers):
        return None  # tied: two stages would train copies of their own
    try:
        return _Compiler(tuple(input_shape)).compile(layers)
    except _NoBlockError:
        return None


class _NoBlockError(Exception):
    """This list of layers has no stacked form here."""


@dataclass
class _Compiler:
    """The shape of one record between two layers, as the layers are read from the first to the last."""

    shape: tuple[int, ...]

    def compile(self, layers: list[Named]) -> BlockNetwork:
        """The whole network."""
        input_shape, stages = self.shape, list[Stage]()
        while layers:
            name, layer = layers[0]
            followers = _followers(layers[1:])
            if isinstance(layer, nn.Conv2d):
                stages.append(self._convolution(name, layer, followers))
            elif isinstance(layer, nn.Linear):
                stages.append(self._linear(name, layer, followers))
            elif isinstance(layer, nn.Flatten) and not followers:
                stages.extend(self._flatten(layer))
            else:
                raise _NoBlockError
            layers = layers[1 + len(followers) :]
        if not stages or len(self.shape) != 1:
            raise _NoBlockError
        if not isinstance(stages[0], ConvStage):
            stages = [stage for stage in stages if not isinstance(stage, FlattenStage)]
        return BlockNetwork(input_shape, tuple(stages))

    def _convolution(self, name: str, layer: nn.Conv2d, followers: list[Named]) -> ConvStage:
        ordinary = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.groups == 1
        if not convolve.AVAILABLE or not ordinary or layer.padding not in ((0, 0), "valid") or len(self.shape) != 3:
            raise _NoBlockError
        channels, rows, columns = self.shape
        pools = [follower for _, follower in followers if isinstance(follower, nn.MaxPool2d)]
        if channels != layer.in_channels or len(pools) > 1:
            raise _NoBlockError
        pool_rows, pool_columns = _pool_size(pools[0]) if pools else (1, 1)
        shape = ConvShape(
            channels_in=channels,
            channels_out=layer.out_channels,
            rows_in=rows,
            columns_in=columns,
            kernel_rows=layer.kernel_size[0],
            kernel_columns=layer.kernel_size[1],
            pool_rows=pool_rows,
            pool_columns=pool_columns,
            rectify=_rectifies(followers),
        )
        if shape.rows_out < 1 or shape.columns_out < 1:
            raise _NoBlockError
        if not all(follower.per_channel for _, follower in followers if isinstance(follower, MaskedDropout)):
            raise _NoBlockError
        self.shape = (layer.out_channels, shape.rows_out, shape.columns_out)
        return ConvStage(name, shape, layer.bias is not None, _dropout(followers))

    def _linear(self, name: str, layer: nn.Linear, followers: list[Named]) -> LinearStage:
        if self.shape != (layer.in_features,) or any(isinstance(follower, nn.MaxPool2d) for _, follower in followers):
            raise _NoBlockError
        self.shape = (layer.out_features,)
        return LinearStage(name, layer.bias is not None, _rectifies(followers), _dropout(followers))

    def _flatten(self, layer: nn.Flatten) -> list[Stage]:
        if (layer.start_dim, layer.end_dim) != (1, -1) or len(self.shape) not in (1, 3):
            raise _NoBlockError
        stages: list[Stage] = [FlattenStage()] if len(self.shape) == 3 else []
        size = 1
        for extent in self.shape:
            size *= extent
        self.shape = (size,)
        return stages


def _followers(layers: list[Named]) -> list[Named]:
    """The layers that join the stage of the product before them."""
    joining = list[Named]()
    for name, layer in layers:
        if not isinstance(layer, nn.ReLU | nn.MaxPool2d | MaskedDropout):
            break
        joining.append((name, layer))
    return joining


def _rectifies(followers: list[Named]) -> bool:
    return any(isinstance(layer, nn.ReLU) for _, layer in followers)


def _dropout(followers: list[Named]) -> tuple[str, ...]:
    return tuple(name for name, layer in followers if isinstance(layer, MaskedDropout))


def _pool_size(layer: nn.MaxPool2d) -> tuple[int, int]:
    size, stride, padding, dilation = (
        _pair(value) for value in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    )
    if stride != size or padding != (0, 0) or dilation != (1, 1) or layer.ceil_mode or layer.return_indices:
        raise _NoBlockError
    return size


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
