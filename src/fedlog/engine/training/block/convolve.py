"""Convolution with pooling, bias and ReLU for stacked clients, by the compiled functions of `convolve.c`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fedlog.engine.training.block import library
from fedlog.engine.training.block.library import get_scratch_space, run_compiled

_FIELDS = (
    "clients",
    "batch",
    "channels_in",
    "channels_out",
    "rows_in",
    "columns_in",
    "kernel_rows",
    "kernel_columns",
    "pool_rows",
    "pool_columns",
    "rectify",
    "pad_top",
    "pad_left",
    "pad_bottom",
    "pad_right",
    "stride_rows",
    "stride_columns",
)


class _ConvSizes(ctypes.Structure):
    """The C struct of sizes that a compiled convolution takes."""

    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


@dataclass(frozen=True)
class ConvShape:
    """The sizes of one convolution with zero padding and strides, then non-overlapping maximum pooling, and ReLU.

    Channels are those of one group; the groups of a grouped convolution are computed as if they were clients.
    """

    channels_in: int
    channels_out: int
    rows_in: int
    columns_in: int
    kernel_rows: int
    kernel_columns: int
    pool_rows: int = 1
    pool_columns: int = 1
    rectify: bool = False
    pad_top: int = 0
    pad_left: int = 0
    pad_bottom: int = 0
    pad_right: int = 0
    stride_rows: int = 1
    stride_columns: int = 1
    groups: int = 1

    @cached_property
    def rows_out(self) -> int:
        """Rows after pooling; a last incomplete pooling window is dropped, as in PyTorch."""
        padded = self.rows_in + self.pad_top + self.pad_bottom
        return ((padded - self.kernel_rows) // self.stride_rows + 1) // self.pool_rows

    @cached_property
    def columns_out(self) -> int:
        """Columns after pooling."""
        padded = self.columns_in + self.pad_left + self.pad_right
        return ((padded - self.kernel_columns) // self.stride_columns + 1) // self.pool_columns

    @cached_property
    def keeps_pool_winners(self) -> bool:
        """Whether the backward pass needs the argmax of each pooling window, and where ReLU gave zero."""
        return self.pool_rows * self.pool_columns > 1 or self.rectify

    @cached_property
    def has_padding_or_stride(self) -> bool:
        """Whether the convolution has padding or a stride."""
        return (self.pad_top, self.pad_left, self.pad_bottom, self.pad_right) != (0, 0, 0, 0) or (
            self.stride_rows,
            self.stride_columns,
        ) != (1, 1)


def convolve_and_pool(shape: ConvShape, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve and pool maps to (clients, channels out, rows, columns, batch); differentiable in all three tensors.

    Bias, ReLU and a multiplier for each channel can be applied after the maximum with the same result, so they are
    applied to the pooled map, which is smaller. Values and gradients are the same as with ReLU before the pooling.
    """
    if torch.is_grad_enabled():
        pooled: Tensor = _ConvPoolFunction.apply(inputs, weight, bias, shape)  # type: ignore[no-untyped-call]
        return pooled
    return _run_compiled_forward(shape, inputs.contiguous(), weight.contiguous(), bias, None)


@dataclass(frozen=True, eq=False)
class SavedConvValues:
    """What the backward pass of a convolution needs from the forward pass of a batch."""

    shape: ConvShape
    inputs: Tensor
    weight: Tensor
    winners: Tensor | None


def run_forward(
    shape: ConvShape, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, SavedConvValues]:
    """The pooled map, as `convolve_and_pool` returns it, and what `run_backward` needs; both without autograd."""
    inputs, weight = inputs.contiguous(), weight.contiguous()
    winners = inputs.new_empty(_compute_pooled_size(shape, inputs)) if shape.keeps_pool_winners else None
    return _run_compiled_forward(shape, inputs, weight, bias, winners), SavedConvValues(shape, inputs, weight, winners)


def run_backward(saved: SavedConvValues, gradient: Tensor, needs: tuple[bool, bool, bool]) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs, the weight and the bias; None for those that are not needed."""
    inputs, weight = saved.inputs, saved.weight
    of_inputs = torch.empty_like(inputs) if needs[0] else None
    of_weight = torch.empty_like(weight) if needs[1] else None
    of_bias = weight.new_empty(weight.shape[:2]) if needs[2] else None
    tensors = (inputs, weight, saved.winners, gradient.contiguous(), of_inputs, of_weight, of_bias)
    _call_compiled("backward", saved.shape, inputs, tensors)
    return of_inputs, of_weight, of_bias


class _ConvPoolFunction(Function):
    """`convolve_and_pool` with gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, shape: ConvShape) -> Tensor:
        pooled, saved = run_forward(shape, inputs, weight, bias)
        ctx.shape = shape
        ctx.save_for_backward(saved.inputs, saved.weight, saved.winners)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs, the weight and the bias; None for those that are not needed."""
        return *run_backward(SavedConvValues(ctx.shape, *ctx.saved_tensors), gradient, ctx.needs_input_grad[:3]), None


def _run_compiled_forward(
    shape: ConvShape, inputs: Tensor, weight: Tensor, bias: Tensor | None, winners: Tensor | None
) -> Tensor:
    pooled = inputs.new_empty(_compute_pooled_size(shape, inputs))
    _call_compiled(
        "forward", shape, inputs, (inputs, weight, None if bias is None else bias.contiguous(), pooled, winners)
    )
    return pooled


def _compute_pooled_size(shape: ConvShape, inputs: Tensor) -> tuple[int, ...]:
    channels = shape.channels_out * shape.groups
    return (inputs.shape[0], channels, shape.rows_out, shape.columns_out, inputs.shape[-1])


def _call_compiled(direction: str, shape: ConvShape, inputs: Tensor, tensors: tuple[Tensor | None, ...]) -> None:
    """Call the compiled function of this direction; `tensors` are contiguous, in the order of its arguments."""
    clients, channels, rows, columns, batch = inputs.shape
    assert (channels, rows, columns) == (shape.channels_in * shape.groups, shape.rows_in, shape.columns_in)
    sizes, room = make_conv_sizes_and_scratch_size(shape, clients, batch)
    run_compiled(f"convolve_{direction}", inputs.dtype, sizes, *tensors, get_scratch_space(room, inputs.dtype))


@lru_cache(maxsize=256)
def make_conv_sizes_and_scratch_size(shape: ConvShape, clients: int, batch: int) -> tuple[_ConvSizes, int]:
    """The sizes that a compiled function takes, and how many numbers of scratch space it needs."""
    sizes = _ConvSizes(clients * shape.groups, batch, *(int(getattr(shape, name)) for name in _FIELDS[2:]))
    return sizes, library.LIBRARY.convolve_scratch(ctypes.byref(sizes))
