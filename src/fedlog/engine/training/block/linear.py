"""Linear layers with ReLU for stacked clients, by the compiled functions of `linear.c`.

Plain bodies (only linear layers, and convolutions without padding or stride) do not use `CompiledLinearFunction`:
recorded results of such bodies were made by PyTorch and must repeat to the last bit. Other bodies use it, because with
small batches it is faster than PyTorch.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fedlog.engine.training.block import library
from fedlog.engine.training.block.library import NUMBER, get_scratch_space, run_compiled


class LinearSizes(ctypes.Structure):
    """The C struct of sizes that a compiled linear layer takes."""

    _fields_ = [(name, ctypes.c_int64) for name in ("clients", "batch", "units_in", "units_out", "rectify")]


def can_run_compiled(inputs: Tensor, weight: Tensor) -> bool:
    """Whether the compiled functions can read these tensors: on the CPU, of one known type, contiguous inputs."""
    known = inputs.dtype == weight.dtype and inputs.dtype in NUMBER and inputs.device.type == "cpu"
    return library.AVAILABLE and known and inputs.is_contiguous()


class CompiledLinearFunction(Function):
    """A linear layer for stacked clients, followed by ReLU if `rectify`; by `linear.c`, with gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, rectify: bool) -> Tensor:
        """Apply the layer: (clients, batch, units in) -> (clients, batch, units out)."""
        weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
        outputs = inputs.new_empty(*inputs.shape[:2], weight.shape[1])
        _call_compiled("forward", rectify, inputs, weight, bias, outputs)
        ctx.rectify = rectify
        ctx.save_for_backward(inputs, weight, outputs if rectify else None)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs, the weight and the bias, each None if it is not needed."""
        inputs, weight, outputs = ctx.saved_tensors
        of_inputs = torch.empty_like(inputs) if ctx.needs_input_grad[0] else None
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        of_bias = weight.new_empty(weight.shape[:2]) if ctx.needs_input_grad[2] else None
        scratch = get_scratch_space(gradient[:1].numel(), gradient.dtype)
        gradients = (gradient.contiguous(), of_inputs, of_weight, of_bias)
        _call_compiled("backward", ctx.rectify, inputs, weight, outputs, *gradients, scratch)
        return of_inputs, of_weight, of_bias, None


def _call_compiled(direction: str, rectify: bool, inputs: Tensor, weight: Tensor, *others: Tensor | None) -> None:
    """Call the function of `linear.c` for this direction, with the tensors in its order; None is a null pointer."""
    sizes = LinearSizes(*inputs.shape, weight.shape[1], int(rectify))
    run_compiled(f"linear_{direction}", inputs.dtype, sizes, inputs, weight, *others)
