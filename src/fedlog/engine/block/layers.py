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

from fedlog.engine.block.geometry import ConvGeometry, fold_kernels, fold_tiles, gather_tiles, spread_kernels
from fedlog.engine.block.pooling import maxima, route_to_first_maximum
from fedlog.errors import RunError


class ConvPool(Function):
    """Convolution, maximum pooling, bias, then ReLU where `rectify`, for stacked clients.

    ReLU, the bias and a multiplier per channel all commute with the maximum, so they act on the pooled map, which is
    smaller; a layer list with ReLU before the pooling has the same values and the same gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry, rectify: bool
    ) -> Tensor:
        """(clients, channels in, rows, phases, columns, batch) -> (clients, channels out, rows, 1, columns, batch)."""
        g = geometry
        tiles = gather_tiles(g, inputs)
        kernels = spread_kernels(g, weight)
        outputs = torch.bmm(kernels, tiles)
        best_of_columns = maxima(_column_competitors(g, outputs, inputs.shape[-1]))
        best = maxima(best_of_columns.unbind(1)).unsqueeze(3)
        if bias is not None:
            best.add_(bias[:, :, None, None, None, None])
        if rectify:
            best.clamp_min_(0)
        ctx.geometry, ctx.rectify = geometry, rectify
        ctx.work = (tiles if ctx.needs_input_grad[1] else None, kernels, outputs, best_of_columns)
        ctx.save_for_backward(best)
        return best

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs, the weight and the bias, each only where it is asked for."""
        if ctx.work is None:
            raise RunError("a block's backward pass ran twice on one forward pass: its work arrays are used up")
        g: ConvGeometry = ctx.geometry
        (best,) = ctx.saved_tensors
        tiles, kernels, outputs, best_of_columns = ctx.work
        ctx.work = None
        if ctx.rectify:
            gradient = torch.ops.aten.threshold_backward(gradient, best, 0)
        gradient = gradient.contiguous()
        of_bias = gradient.sum((2, 3, 4, 5)) if ctx.needs_input_grad[2] else None
        if not any(ctx.needs_input_grad[:2]):
            return None, None, of_bias, None, None
        if g.pool_rows > 1:
            route_to_first_maximum(best_of_columns.unbind(1), gradient.squeeze(3))
        else:
            best_of_columns = gradient.view(best_of_columns.shape)
        if g.pool_columns > 1:
            route_to_first_maximum(_column_competitors(g, outputs, gradient.shape[-1]), best_of_columns)
        else:
            outputs = best_of_columns.view(outputs.shape)
        of_weight = of_inputs = None
        if tiles is not None:
            of_weight = fold_kernels(g, torch.bmm(outputs, tiles.mT))
        if ctx.needs_input_grad[0]:
            of_inputs = fold_tiles(g, torch.bmm(kernels.mT, outputs), gradient.shape[-1])
        return of_inputs, of_weight, of_bias, None, None


def _column_competitors(geometry: ConvGeometry, outputs: Tensor, batch: int) -> tuple[Tensor, ...]:
    """`pool_columns` views (clients, tile rows, channels out, rows out, columns out, batch) of the outputs."""
    g, clients = geometry, outputs.shape[0]
    if g.tile_columns > 1:
        merged = outputs.view(clients, g.tile_rows, g.tile_columns, g.channels_out, g.rows_out, g.columns_out, batch)
        return merged.unbind(2)
    apart = outputs.view(clients, g.tile_rows, g.channels_out, g.rows_out, g.columns_out, g.pool_columns, batch)
    return apart.unbind(5)


class Linear(Function):
    """A linear layer, then ReLU where `rectify`, for stacked clients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, rectify: bool) -> Tensor:
        """(clients, batch, units in) -> (clients, batch, units out), oriented as narrow batches run best."""
        outputs = torch.bmm(inputs, weight.mT)
        if bias is not None:
            outputs.add_(bias[:, None])
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
