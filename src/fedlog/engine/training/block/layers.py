"""The layers around the convolutions, for a stack of clients, with their backward passes written out.

Each is a `torch.autograd.Function`: ordinary `backward()` gives every client's gradients, and nothing is computed for
frozen parameters or for the data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


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


class RectifiedSum(Function):
    """ReLU of the sum of two values of one shape."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor) -> Tensor:
        """The rectified sum."""
        outputs = (one + other).clamp_min_(0)
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of both, which is the same."""
        (outputs,) = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(gradient, outputs, 0)
        return passed, passed


class Flatten(Function):
    """From maps to units, in PyTorch's order: channels, rows, columns."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        """(clients, *shape, batch) -> (clients, batch, units), the batch still innermost."""
        ctx.sizes = maps.shape
        return maps.flatten(1, -2).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient of the maps, with the batch innermost again."""
        return batch_innermost(gradient).view(ctx.sizes)


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
