"""Pooling and normalisation of maps for stacked clients, by the compiled functions of `maps.c`."""

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

Span = tuple[int, int]  # start and end
Pair = tuple[int, int]  # of rows and of columns


class PoolingSizes(ctypes.Structure):
    """The C struct of sizes and windows that the compiled pooling takes."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("planes", "batch", "rows_in", "columns_in")),
        *((name, ctypes.c_int64) for name in ("rows_out", "columns_out", "mean")),
        *((name, ctypes.c_void_p) for name in ("row_from", "row_to", "column_from", "column_to", "divisor")),
    ]


class _NormSizes(ctypes.Structure):
    """The C struct of sizes that the compiled normalisation takes."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("clients", "groups", "channels", "rows", "columns", "batch")),
        *((name, ctypes.c_int64) for name in ("rectify", "pool_rows", "pool_columns")),
        ("epsilon", ctypes.c_double),
    ]


@dataclass(frozen=True, eq=False)
class Windows:
    """The rows and columns of each pooling window, and the divisor of each window's sum (for mean pooling only)."""

    size: Pair  # rows and columns of the input
    rows: tuple[Span, ...]
    columns: tuple[Span, ...]
    divisors: Tensor | None = None  # (rows, columns) float64

    @cached_property
    def tables(self) -> tuple[Tensor, ...]:
        """The tables for the compiled functions: the starts and ends of rows and of columns, and the divisors."""
        ends = [torch.tensor(list(part)) for spans in (self.rows, self.columns) for part in zip(*spans, strict=True)]
        return (*ends, torch.zeros(0, dtype=torch.float64) if self.divisors is None else self.divisors.contiguous())


class PoolFunction(Function):
    """Pooling of maps (clients, channels, rows, columns, batch) by compiled code, with gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, windows: Windows) -> Tensor:
        """The pooled map."""
        inputs = inputs.contiguous()
        pooled = inputs.new_empty(*inputs.shape[:2], len(windows.rows), len(windows.columns), inputs.shape[-1])
        winners = torch.empty_like(pooled) if windows.divisors is None else None
        _call_pool("forward", windows, inputs.shape, (inputs, pooled, winners))
        ctx.windows, ctx.shape = windows, inputs.shape
        ctx.save_for_backward(winners)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient of the inputs."""
        (winners,) = ctx.saved_tensors
        of_inputs = gradient.new_empty(ctx.shape)
        _call_pool("backward", ctx.windows, ctx.shape, (gradient.contiguous(), winners, of_inputs))
        return of_inputs, None


def _call_pool(direction: str, windows: Windows, shape: torch.Size, tensors: tuple[Tensor | None, ...]) -> None:
    (dtype,) = {tensor.dtype for tensor in tensors if tensor is not None}
    run_compiled(f"pool_{direction}", dtype, make_pooling_sizes(windows, shape[0] * shape[1], shape[-1]), *tensors)


def make_pooling_sizes(windows: Windows, planes: int, batch: int) -> PoolingSizes:
    """The sizes that compiled pooling takes, for so many `planes` (clients x channels).

    They point to tables in `windows`, which must outlive them.
    """
    return PoolingSizes(
        planes,
        batch,
        *windows.size,
        len(windows.rows),
        len(windows.columns),
        int(windows.divisors is not None),
        *(table.data_ptr() for table in windows.tables),
    )


@dataclass(frozen=True)
class NormShape:
    """The sizes of a group normalisation of maps, in which each channel has its own factor and shift.

    Each record is normalised alone. Non-overlapping maximum pooling and ReLU may follow.
    """

    groups: int
    channels: int  # of one group
    rows: int
    columns: int
    epsilon: float
    rectify: bool
    pool_rows: int = 1
    pool_columns: int = 1

    @cached_property
    def has_pooling(self) -> bool:
        """Whether there is pooling, so that the backward pass needs the argmax of each window."""
        return self.pool_rows * self.pool_columns > 1


def normalise(shape: NormShape, inputs: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Normalise maps (clients, channels, *space, batch), and pool them if `shape` says so; differentiable."""
    if torch.is_grad_enabled():
        found: Tensor = NormFunction.apply(inputs, weight, bias, shape)  # type: ignore[no-untyped-call]
        return found
    weight, bias = (None if value is None else value.contiguous() for value in (weight, bias))
    return _normalise(shape, inputs.contiguous(), weight, bias, None)[0]


class NormFunction(Function):
    """Normalisation of maps (clients, groups * channels, *space, batch) by compiled code, with gradients."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, shape: NormShape) -> Tensor:
        """The normalised maps, smaller if they are pooled."""
        inputs = inputs.contiguous()
        weight, bias = (None if value is None else value.contiguous() for value in (weight, bias))
        winners = inputs.new_empty(_compute_normalised_size(shape, inputs)) if shape.has_pooling else None
        outputs, means, scales = _normalise(shape, inputs, weight, bias, winners)
        ctx.shape = shape
        ctx.save_for_backward(inputs, weight, bias, means, scales, winners)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs, the weight and the bias; None for those that are not needed."""
        inputs, weight, bias, means, scales, winners = ctx.saved_tensors
        of_inputs = torch.empty_like(inputs) if ctx.needs_input_grad[0] else None
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        of_bias = torch.empty_like(bias) if ctx.needs_input_grad[2] else None
        tensors = (inputs, weight, bias, means, scales, winners, gradient.contiguous(), of_inputs, of_weight, of_bias)
        _call_norm("backward", ctx.shape, inputs, tensors)
        return of_inputs, of_weight, of_bias, None


def _normalise(
    shape: NormShape, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, winners: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised maps, and the mean and scale of each record and group."""
    outputs = inputs.new_empty(_compute_normalised_size(shape, inputs))
    means, scales = (inputs.new_empty(inputs.shape[0], shape.groups, inputs.shape[-1]) for _ in range(2))
    _call_norm("forward", shape, inputs, (inputs, weight, bias, outputs, means, scales, winners))
    return outputs, means, scales


def _compute_normalised_size(shape: NormShape, inputs: Tensor) -> tuple[int, ...]:
    if not shape.has_pooling:
        return tuple(inputs.shape)
    rows = (shape.rows // shape.pool_rows,) if inputs.ndim == 5 else ()
    return (*inputs.shape[:2], *rows, shape.columns // shape.pool_columns, inputs.shape[-1])


def _call_norm(direction: str, shape: NormShape, inputs: Tensor, tensors: tuple[Tensor | None, ...]) -> None:
    sizes, room = make_norm_sizes_and_scratch_size(shape, inputs.shape[0], inputs.shape[-1])
    run_compiled(f"norm_{direction}", inputs.dtype, sizes, *tensors, get_scratch_space(room, inputs.dtype))


@lru_cache(maxsize=256)
def make_norm_sizes_and_scratch_size(shape: NormShape, clients: int, batch: int) -> tuple[_NormSizes, int]:
    """The sizes that a compiled function takes, and how many numbers of scratch space it needs."""
    map_sizes = (shape.groups, shape.channels, shape.rows, shape.columns, batch)
    behind = (int(shape.rectify), shape.pool_rows, shape.pool_columns)
    sizes = _NormSizes(clients, *map_sizes, *behind, shape.epsilon)
    return sizes, library.LIBRARY.norm_scratch(ctypes.byref(sizes))
