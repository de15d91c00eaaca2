"""The two layers that do nearly all the work, for a stack of clients, with their backward passes written out.

Each is a `torch.autograd.Function`: ordinary `backward()` gives every client's gradients, nothing is computed for
frozen parameters or for the data, and what happens between two products is done in place on arrays that are at hand.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fedlog.engine.block.pooling import maxima_into, route_to_first_maximum
from fedlog.engine.block.workspace import ConvWork, Shelf, strips_of
from fedlog.errors import RunError


def conv_pool(work: ConvWork, inputs: Tensor, weight: Tensor, bias: Tensor | None, *, rectify: bool) -> Tensor:
    """The pooled map (clients, rows, channels out, 1, columns, batch) of a convolution; fills the work arrays.

    ReLU, the bias and a multiplier per channel all commute with the maximum, so they act on the pooled map, which is
    smaller; a layer list with ReLU before the pooling has the same values and the same gradients.
    """
    work.strips.copy_(strips_of(work.geometry, work.strips.shape, inputs))
    for place in work.kernels.places:
        place.copy_(weight)
    for kernels, windows, outputs in work.products:
        torch.bmm(kernels, windows, out=outputs)
    maxima_into(work.best_of_columns, work.column_competitors)
    best = torch.empty_like(work.pooled_gradient)
    maxima_into(best, work.row_competitors)
    if bias is not None:
        best.add_(bias[:, None, :, None, None])
    if rectify:
        best.clamp_min_(0)
    return best.unsqueeze(3)


class ConvPool(Function):
    """`conv_pool` as a differentiable function of the inputs, the weight and the bias."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, shelf: Shelf, rectify: bool) -> Tensor:
        """See `conv_pool`; the work arrays stay with this pass until its backward pass is done."""
        work = shelf.take(inputs.shape[0], inputs.shape[-1], inputs.dtype)
        best = conv_pool(work, inputs, weight, bias, rectify=rectify)
        ctx.work, ctx.shelf, ctx.rectify = work, shelf, rectify
        ctx.save_for_backward(best)
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs, the weight and the bias, each only where it is asked for."""
        if ctx.work is None:
            raise RunError("a block's backward pass ran twice on one forward pass: its work arrays are used up")
        work: ConvWork = ctx.work
        shelf: Shelf = ctx.shelf
        ctx.work = None
        of_inputs, of_weight, of_bias = None, None, None
        _unpool(work, gradient, ctx.saved_tensors[0] if ctx.rectify else None)
        if ctx.needs_input_grad[2]:
            of_bias = work.pooled_gradient.sum((1, 3, 4))
        if ctx.needs_input_grad[1]:
            of_weight = _weight_gradient(work)
        if ctx.needs_input_grad[0]:
            of_inputs = _input_gradient(work)
        shelf.put_back(work)
        return of_inputs, of_weight, of_bias, None, None


def _unpool(work: ConvWork, gradient: Tensor, rectified: Tensor | None) -> None:
    """Replace the product's outputs by their gradients, given that of the pooled map."""
    pooled, gradient = work.pooled_gradient, gradient.squeeze(3)
    if rectified is None:
        pooled.copy_(gradient)
    else:
        torch.ops.aten.threshold_backward.grad_input(gradient, rectified.squeeze(3), 0, grad_input=pooled)
    route_to_first_maximum(work.row_competitors, pooled)
    route_to_first_maximum(work.column_competitors, work.best_of_columns)


def _weight_gradient(work: ConvWork) -> Tensor:
    """(clients, channels out, channels in, kernel rows, kernel columns), summed over the places of each kernel."""
    more = work.weight_gradient
    for outputs, windows, summands in more.products:
        torch.bmm(outputs, windows, out=summands)
    torch.sum(more.summands, 1, out=more.total.matrices)
    first, *others = more.total.places
    total = first.contiguous() if not others else torch.add(first, others[0])
    for place in others[1:]:
        total.add_(place)
    return total


def _input_gradient(work: ConvWork) -> Tensor:
    """The gradient of the map that came in: each pixel sums over the windows that see it."""
    more = work.input_gradient
    if work.geometry.tile.rows == 1:
        kernels = work.kernels.row_places[0]
        for place in more.kernels.row_places:
            place.copy_(kernels)
    else:
        more.kernels.values.copy_(work.kernels.values)
    for spread, outputs, windows in more.products:
        torch.bmm(spread, outputs, out=windows)
    folded = torch.zeros(more.map_sizes, dtype=work.dtype)
    for part, start in more.parts:
        folded.as_strided(more.part_sizes, more.part_strides, start).add_(part)
    return folded


class Linear(Function):
    """A linear layer, then ReLU where `rectify`, for stacked clients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, rectify: bool) -> Tensor:
        """(clients, batch, units in) -> (clients, batch, units out), oriented as narrow batches run best."""
        outputs = torch.bmm(inputs, weight.mT) if bias is None else torch.baddbmm(bias[:, None], inputs, weight.mT)
        if rectify:
            outputs.clamp_min_(0)
        ctx.rectify = rectify
        ctx.save_for_backward(inputs, weight, outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs, the weight and the bias, each only where it is asked for."""
        inputs, weight, outputs = ctx.saved_tensors
        if ctx.rectify:
            gradient = torch.ops.aten.threshold_backward(gradient, outputs, 0)
        of_inputs = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        of_weight = torch.bmm(gradient.mT, inputs) if ctx.needs_input_grad[1] else None
        of_bias = gradient.sum(1) if ctx.needs_input_grad[2] else None
        return of_inputs, of_weight, of_bias, None


class Flatten(Function):
    """From maps to units, in PyTorch's order: channels, rows, columns."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        """(clients, rows, channels, 1, columns, batch) -> (clients, batch, units), the batch still innermost."""
        clients, rows, channels, _, columns, batch = maps.shape
        ctx.sizes = (clients, channels, rows, 1, columns, batch)
        return maps.transpose(1, 2).reshape(clients, channels * rows * columns, batch).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient of the maps, a view with the batch innermost again."""
        return batch_innermost(gradient).view(ctx.sizes).transpose(1, 2)


BATCH_OF_A_BLOCKED_TRANSPOSE = 24


def batch_innermost(records: Tensor) -> Tensor:
    """(clients, batch, units) -> contiguous (clients, units, batch)."""
    clients, batch, units = records.shape
    if batch < BATCH_OF_A_BLOCKED_TRANSPOSE:
        return records.mT.contiguous()
    # PyTorch transposes block by block only in two dimensions: four times faster for wide batches.
    turned = records.new_empty(clients, units, batch)
    for client in range(clients):
        turned[client].copy_(records[client].t())
    return turned
