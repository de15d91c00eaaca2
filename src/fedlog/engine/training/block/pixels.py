"""Gather batches by compiled code, from a pool of 8-bit images or signals, or from a pool of floats.

A pool of 8-bit records is not converted: floats would take four times the memory, and forked workers share the pool. A
table has the normalised value of each of a channel's 256 levels, so the numbers are exactly those of
`Transform.prepare`. Crops and flips are applied at the same time.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fedlog.data.transforms import Transform
from fedlog.engine.training.block import library
from fedlog.engine.training.block.library import run_compiled

_FIELDS = ("clients", "batch", "records", "channels", "rows", "columns", "innermost", "padding")


class _PixelSizes(ctypes.Structure):
    """The C struct of sizes that `gather_pixels` takes."""

    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


@dataclass(frozen=True, eq=False)
class PixelPool:
    """A pool of 8-bit records (n, channels, ...), and the normalised value of each of the 256 levels."""

    pool: Tensor
    levels: Tensor  # (channels, 256)
    padding: int

    def gather(self, positions: Tensor, crops: Tensor | None, shape: tuple[int, ...], innermost: bool) -> Tensor:
        """The batch of the records at `positions` (clients, batch), in this `shape`.

        `crops` (3, clients, batch) has the row, column and flip of each record. With `innermost` the batch is the last
        axis, otherwise the second.
        """
        positions = positions.contiguous()
        crops = None if crops is None else crops.contiguous()
        found = self.levels.new_empty(shape)
        rows, columns = (1, *self.pool.shape[2:])[-2:] if self.pool.ndim < 5 else (1, prod(self.pool.shape[2:]))
        sizes = _PixelSizes(*positions.shape, *self.pool.shape[:2], rows, columns, int(innermost), self.padding)
        if not run_compiled("gather_pixels", found.dtype, sizes, self.pool, positions, crops, self.levels, found):
            raise _make_position_error(len(self.pool))
        return found


def make_pixel_pool(inputs: Tensor, transform: Transform, dtype: torch.dtype) -> PixelPool | None:
    """The pool for the compiled code; None if the records are not 8-bit, or if the code is not compiled."""
    if not library.AVAILABLE or inputs.dtype != torch.uint8 or inputs.ndim < 3 or inputs.device.type != "cpu":
        return None
    channels = inputs.shape[1]
    every = torch.arange(256, dtype=torch.uint8).view(-1, *(1,) * (inputs.ndim - 1))
    prepared = transform.prepare(every.expand(256, channels, *(1,) * (inputs.ndim - 2)))
    levels = prepared.view(256, channels).t().to(dtype).contiguous()
    return PixelPool(inputs.contiguous(), levels, transform.crop_padding)


def gather_batch_innermost(pool: Tensor, positions: Tensor) -> Tensor | None:
    """The numbers (clients, units, batch) of the records at `positions` (clients, batch) in a pool (records, units).

    None if there is no compiled code, or it cannot read the pool.
    """
    known = pool.dtype == torch.float32 and pool.device.type == "cpu" and pool.is_contiguous()
    if not known or not library.AVAILABLE:
        return None
    positions = positions.contiguous()
    (clients, batch), (records, units) = positions.shape, pool.shape
    found = pool.new_empty(clients, units, batch)
    sizes = [ctypes.c_int64(size) for size in (clients, batch, records, units)]
    addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (pool, positions, found)]
    if not library.LIBRARY.gather_turned_float(*sizes, *addresses):
        raise _make_position_error(records)
    return found


def _make_position_error(records: int) -> IndexError:
    return IndexError(f"a position is outside the pool of {records} records")
