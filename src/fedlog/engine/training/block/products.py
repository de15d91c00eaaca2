"""The products of linear layers for stacked clients by compiled passes, where they have the bits of PyTorch's.

A matrix library sums each number of a product in one order, whatever the sizes around it; the passes sum in the same
order. They are compared with PyTorch once for every size, and PyTorch's products are used where a bit differs.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from fedlog.engine.training.block.convolve import LIBRARY, instructions, scratch_space

AVAILABLE = hasattr(LIBRARY, "product_forward_float")
_FIELDS = ("clients", "batch", "units_in", "units_out", "innermost", "weight_step", "bias_step")


class _Product(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


def multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The outputs (clients, batch, units out) of a linear layer, with the bits of PyTorch's `baddbmm`.

    The compiled pass is used for flattened maps; inputs with their units innermost would have to be turned first.
    """
    if bias is None:
        return torch.bmm(inputs, weight.mT)
    is_map = _suits(inputs, weight) and not inputs.is_contiguous() and bias[0].is_contiguous()
    if is_map and _compare(*_sizes(inputs, weight))[0]:
        return _multiply(inputs, weight, bias)
    return torch.baddbmm(bias[:, None], inputs, weight.mT)


def multiply_back(
    inputs: Tensor, weight: Tensor, gradient: Tensor, needs_inputs: bool, needs_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of the inputs, in the inputs' layout, and of the weight, with the bits of PyTorch's `bmm`."""
    if _suits(inputs, weight) and _compare(*_sizes(inputs, weight))[1]:
        return _multiply_back(inputs, weight, gradient.contiguous(), needs_inputs, needs_weight)
    of_inputs = torch.bmm(gradient, weight) if needs_inputs else None
    return of_inputs, torch.bmm(gradient.mT, inputs) if needs_weight else None


def _suits(inputs: Tensor, weight: Tensor) -> bool:
    """Whether the passes can read these tensors."""
    known = inputs.dtype == weight.dtype == torch.float32 and inputs.device.type == "cpu"
    return AVAILABLE and known and (inputs.is_contiguous() or inputs.mT.is_contiguous()) and weight[0].is_contiguous()


def _sizes(inputs: Tensor, weight: Tensor) -> tuple[int, int, int, bool, str]:
    return inputs.shape[1], inputs.shape[2], weight.shape[1], not inputs.is_contiguous(), instructions()


@lru_cache(maxsize=256)
def _compare(batch: int, units_in: int, units_out: int, innermost: bool, instruction_set: str) -> tuple[bool, bool]:
    """Whether the forward and the backward pass give PyTorch's bits for these sizes."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, batch, units_in, generator=generator)
    if innermost:
        inputs = inputs.mT.contiguous().mT
    weight = torch.randn(2, units_out, units_in, generator=generator)
    bias = torch.randn(2, units_out, generator=generator)
    gradient = torch.randn(2, batch, units_out, generator=generator)
    forward = torch.equal(_multiply(inputs, weight, bias), torch.baddbmm(bias[:, None], inputs, weight.mT))
    of_inputs, of_weight = _multiply_back(inputs, weight, gradient, True, True)
    assert of_inputs is not None
    assert of_weight is not None
    backward = torch.equal(of_inputs, torch.bmm(gradient, weight))
    return forward, backward and torch.equal(of_weight, torch.bmm(gradient.mT, inputs))


def _multiply(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    outputs = inputs.new_empty(*inputs.shape[:2], weight.shape[1])
    _call("forward", inputs, weight, bias.stride(0), inputs, weight, bias, outputs)
    return outputs


def _multiply_back(
    inputs: Tensor, weight: Tensor, gradient: Tensor, needs_inputs: bool, needs_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    of_inputs = torch.empty_like(inputs) if needs_inputs else None  # with the strides of the inputs
    of_weight = weight.new_empty(weight.shape) if needs_weight else None
    _call("backward", inputs, weight, 0, inputs, weight, gradient, of_inputs, of_weight)
    return of_inputs, of_weight


def _call(direction: str, inputs: Tensor, weight: Tensor, bias_step: int, *tensors: Tensor | None) -> None:
    (clients, batch, units_in), units_out = inputs.shape, weight.shape[1]
    innermost = int(not inputs.is_contiguous())
    sizes = _Product(clients, batch, units_in, units_out, innermost, weight.stride(0), bias_step)
    scratch = scratch_space(batch * (units_in + 2 * units_out), inputs.dtype)
    addresses = [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in (*tensors, scratch)]
    getattr(LIBRARY, f"product_{direction}_float")(ctypes.byref(sizes), *addresses)
