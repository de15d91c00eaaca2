"""The blocks of linear layers, activations, dropout, sums and flattening; `conv_stages` and `map_stages` have more.

Some use a `torch.autograd.Function` whose backward pass computes the gradients of all clients, but not those of
frozen parameters or of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional

from fedlog.engine.training.block.linear import CompiledLinearFunction, can_run_compiled
from fedlog.engine.training.block.network import (
    Masks,
    Params,
    find_parameter,
    get_parameter,
    move_batch_innermost,
    select_masks,
)
from fedlog.engine.training.block.registry import Block, Follower, PlacedLayer, register_block
from fedlog.engine.training.block.trace import Add, Concatenate
from fedlog.models.masked_dropout import MaskedAlphaDropout, MaskedDropout, apply_alpha_dropout


class LinearFunction(Function):
    """A linear layer for stacked clients, with ReLU after it if `rectify`; by PyTorch, with gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, rectify: bool) -> Tensor:
        """Apply the layer: (clients, batch, units in) -> (clients, batch, units out)."""
        outputs = torch.bmm(inputs, weight.mT) if bias is None else torch.baddbmm(bias[:, None], inputs, weight.mT)
        if rectify:
            outputs.clamp_min_(0)
        ctx.rectify = rectify
        ctx.save_for_backward(inputs, weight, outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs, the weight and the bias; None for those that are not needed."""
        inputs, weight, outputs = ctx.saved_tensors
        if ctx.rectify:
            gradient = torch.ops.aten.threshold_backward(gradient, outputs, 0)
        of_inputs = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        of_weight = torch.bmm(gradient.mT, inputs) if ctx.needs_input_grad[1] else None
        of_bias = gradient.sum(1) if ctx.needs_input_grad[2] else None
        return of_inputs, of_weight, of_bias, None


@dataclass(frozen=True)
class LinearStage:
    """A linear layer, then ReLU if `rectify`, then dropout with a multiplier for each unit."""

    name: str
    rectify: bool
    dropout: tuple[str, ...]
    compiled: bool = False  # by `linear.c`, whose last bits are not PyTorch's

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """Apply the layer: (clients, batch, units in) -> (clients, batch, units out)."""
        (inputs,), clients = values, values[0].shape[0]
        weight = get_parameter(self.name, "weight", params, clients)
        bias = find_parameter(self.name, "bias", params, clients)
        function = CompiledLinearFunction if self.compiled and can_run_compiled(inputs, weight) else LinearFunction
        units: Tensor = function.apply(inputs, weight, bias, self.rectify)  # type: ignore[no-untyped-call]
        for mask in select_masks(masks, self.dropout):
            units = units * mask
        return units


@register_block(nn.Linear)
def _build_linear(place: PlacedLayer) -> Block | None:
    """Build the stacked version (block) of a linear layer, with the ReLU and dropout layers after it."""
    if len(place.shape) != 1:
        return None
    joining = list[Follower]()
    for follower in place.followers:
        if not isinstance(follower.layer, nn.ReLU | MaskedDropout):
            break
        joining.append(follower)
    rectify = any(isinstance(one.layer, nn.ReLU) for one in joining)
    dropout = tuple(one.name for one in joining if isinstance(one.layer, MaskedDropout))
    return Block(LinearStage(place.name, rectify, dropout), len(joining))


class FlattenFunction(Function):
    """Flattens maps into vectors (units) as a view, with gradients; PyTorch's order: channels, rows, columns."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        """Flatten as a view: (clients, *shape, batch) -> (clients, batch, units)."""
        ctx.sizes = maps.shape
        return maps.flatten(1, -2).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient of the maps."""
        return move_batch_innermost(gradient).view(ctx.sizes)


@dataclass(frozen=True)
class FlattenStage:
    """Flattens maps into vectors (units), in PyTorch's order: channels, rows, columns."""

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """Flatten: (clients, *shape, batch) -> (clients, batch, units)."""
        units: Tensor = FlattenFunction.apply(values[0])  # type: ignore[no-untyped-call]
        return units


@register_block(nn.Flatten)
def _build_flatten(place: PlacedLayer) -> Block | None:
    """Build the stacked version (block) of a layer that flattens records; None for a layer that keeps some axes."""
    return Block(FlattenStage()) if len(place.shape) > 1 and place.shape_out == (prod(place.shape),) else None


@dataclass(frozen=True)
class DropoutStage:
    """Dropout with a multiplier for each unit, channel or position."""

    name: str
    per_channel: bool

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """The values times their multipliers."""
        (inputs,) = values
        for mask in select_masks(masks, (self.name,)):
            return inputs * _arrange_mask(mask, inputs, self.per_channel)
        return inputs


@register_block(MaskedDropout)
def _build_dropout(place: PlacedLayer) -> Block | None:
    return Block(DropoutStage(place.name, place.layer.per_channel))


@dataclass(frozen=True)
class AlphaDropoutStage:
    """Alpha dropout of each unit, channel or position."""

    name: str
    p: float
    per_channel: bool

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """The values after alpha dropout, which drops those whose multiplier is 0; unchanged in evaluation."""
        (inputs,) = values
        for mask in select_masks(masks, (self.name,)):
            return apply_alpha_dropout(inputs, _arrange_mask(mask, inputs, self.per_channel), self.p)
        return inputs


@register_block(MaskedAlphaDropout)
def _build_alpha_dropout(place: PlacedLayer) -> Block | None:
    return Block(AlphaDropoutStage(place.name, place.layer.p, place.layer.per_channel))


def _arrange_mask(mask: Tensor, inputs: Tensor, per_channel: bool) -> Tensor:
    """A dropout layer's mask (clients, batch, channels or *shape) in the layout of the stacked inputs."""
    if inputs.ndim == 3:  # units
        return mask
    mask = mask.movedim(1, -1)  # (clients, channels or *shape, batch)
    return mask.reshape(*mask.shape[:2], *(1,) * (inputs.ndim - 3), mask.shape[-1]) if per_channel else mask


@dataclass(frozen=True)
class ElementwiseStage:
    """A function that is applied to every number."""

    function: Callable[[Tensor], Tensor]

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """Apply the function to the values."""
        return self.function(values[0])


@register_block(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SELU)
def _build_activation(place: PlacedLayer) -> Block | None:
    """Build the stacked version (block) of an activation; never in place, because other layers may read the input."""
    layer = place.layer
    functions: dict[type[nn.Module], Callable[[], Callable[[Tensor], Tensor]]] = {
        nn.ReLU: lambda: torch.relu,
        nn.ReLU6: lambda: functional.relu6,
        nn.LeakyReLU: lambda: partial(functional.leaky_relu, negative_slope=layer.negative_slope),
        nn.GELU: lambda: partial(functional.gelu, approximate=layer.approximate),
        nn.SiLU: lambda: functional.silu,
        nn.Tanh: lambda: torch.tanh,
        nn.Sigmoid: lambda: torch.sigmoid,
        nn.ELU: lambda: partial(functional.elu, alpha=layer.alpha),
        nn.SELU: lambda: functional.selu,
    }
    return Block(ElementwiseStage(functions[type(layer)]()))


class RectifiedSumFunction(Function):
    """ReLU of the sum of two values of one shape, with gradients."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        """ReLU of the sum."""
        outputs = (one + other).clamp_min_(0)
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the two values, which are the same."""
        (outputs,) = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(gradient, outputs, 0)
        return passed, passed


@dataclass(frozen=True)
class AddStage:
    """The sum of two values, with ReLU after it if `rectify`."""

    rectify: bool

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """The sum, of the same shape."""
        one, other = values
        if not self.rectify:
            return one + other
        summed: Tensor = RectifiedSumFunction.apply(one, other)  # type: ignore[no-untyped-call]
        return summed


@register_block(Add)
def _build_add(place: PlacedLayer) -> Block | None:
    rectify = bool(place.followers) and isinstance(place.followers[0].layer, nn.ReLU)
    return Block(AddStage(rectify), int(rectify))


@dataclass(frozen=True)
class ConcatenateStage:
    """Joins values along the channels of maps, or along units."""

    axis: int

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor:
        """Join the values along the channels, or along the units."""
        return torch.cat(values, dim=self.axis)


@register_block(Concatenate)
def _build_concatenate(place: PlacedLayer) -> Block | None:
    return Block(ConcatenateStage(2 if len(place.shape_out) == 1 else 1))
