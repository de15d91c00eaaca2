"""Work arrays that are laid out once and used again: nothing large is allocated or sliced anew in a training step.

At these sizes an allocation, or the making of a view, costs as much as a small operation, and memory that was used a
moment ago is still in the cache.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedlog.engine.block.geometry import ConvGeometry, Tile

SHAPES_KEPT = 4  # full batches, the last batch, evaluation and its last slice


Matrices = tuple[Tensor, Tensor, Tensor]


class SpreadKernels:
    """Every kernel once per output of a tile, each shifted to where that output looks; zeros around it."""

    def __init__(self, geometry: ConvGeometry, tile: Tile, clients: int, dtype: torch.dtype) -> None:
        g = geometry
        products, reach = tile.columns * g.channels_out, g.channels_in * tile.window_columns
        self.values = torch.zeros(clients, tile.rows, products, tile.window_rows, reach, dtype=dtype)
        self.matrices = self.values.view(clients, tile.rows * products, tile.window_rows * reach)
        # (clients, products, kernel rows, reach): the rows that the outputs of one row of a tile look at.
        self.row_places = [self.values[:, row, :, row : row + g.kernel_rows] for row in range(tile.rows)]
        # (clients, channels out, channels in, kernel rows, kernel columns): where each kernel stands.
        self.places = [
            rows.view(clients, tile.columns, g.channels_out, g.kernel_rows, g.channels_in, tile.window_columns)[
                :, column, :, :, :, column : column + g.kernel_columns
            ].transpose(2, 3)
            for rows in self.row_places
            for column in range(tile.columns)
        ]


class ConvWork:
    """The arrays of one forward and backward pass of a convolution, and the views into them that the passes need.

    A client's windows overlap in memory, so each client is a batched product of its own, over its rows of tiles.
    """

    def __init__(self, geometry: ConvGeometry, clients: int, batch: int, dtype: torch.dtype) -> None:
        g, tile = geometry, geometry.tile
        across, steps = g.tiles_across * batch, g.rows_out * g.pool_rows // tile.rows
        self.geometry, self.clients, self.batch, self.dtype = geometry, clients, batch, dtype
        self.strips = torch.empty(
            *(clients, g.strips, g.channels_in, tile.window_columns // g.column_phases, g.column_phases),
            *(g.tiles_across, batch),
            dtype=dtype,
        )
        self.windows = [_windows_over(strips, tile, steps, across) for strips in self.strips]
        self.kernels = SpreadKernels(g, tile, clients, dtype)
        # What the products give; after pooling's backward pass, the gradient of it.
        self.outputs = torch.empty(clients, steps, self.kernels.matrices.shape[1], across, dtype=dtype)
        self.products: list[Matrices] = [
            (matrix.expand(steps, -1, -1), windows, outputs)
            for matrix, windows, outputs in zip(self.kernels.matrices, self.windows, self.outputs, strict=True)
        ]
        self.column_competitors = _column_competitors(g, self.outputs, batch)
        first = self.column_competitors[0]
        self.best_of_columns = first if g.pool_columns == 1 else torch.empty(first.shape, dtype=dtype)
        clients, _, channels, columns, batch = first.shape
        by_pool = self.best_of_columns.view(clients, g.rows_out, g.pool_rows, channels, columns, batch)
        self.row_competitors = by_pool.unbind(2)
        self.pooled_gradient = torch.empty(self.row_competitors[0].shape, dtype=dtype)

    @cached_property
    def weight_gradient(self) -> WeightGradientWork:
        """Made when it is first asked for: frozen layers never need it."""
        return WeightGradientWork(self)

    @cached_property
    def input_gradient(self) -> InputGradientWork:
        """Made when it is first asked for: the first layer never needs it."""
        return InputGradientWork(self)


class WeightGradientWork:
    """What the gradient of the kernels needs: one summand per row of tiles, and their sum, spread like the kernels."""

    def __init__(self, work: ConvWork) -> None:
        clients, products, window = work.kernels.matrices.shape
        steps = work.outputs.shape[1]
        self.summands = torch.empty(clients, steps, products, window, dtype=work.dtype)
        self.products: list[Matrices] = [
            (outputs, windows.mT, summands)
            for outputs, windows, summands in zip(work.outputs, work.windows, self.summands, strict=True)
        ]
        self.total = SpreadKernels(work.geometry, work.geometry.tile, clients, work.dtype)


class InputGradientWork:
    """What the gradient of the inputs needs: kernels for its own, larger tiles, and the gradients of all windows."""

    def __init__(self, work: ConvWork) -> None:
        g, tile, clients = work.geometry, work.geometry.gradient_tile, work.clients
        self.kernels = SpreadKernels(g, tile, clients, work.dtype)
        # Rows that lie a whole tile apart never meet in one pixel, so one addition serves all remainders.
        together = tile.rows if tile.window_rows % tile.rows == 0 else 1
        windows = torch.empty(
            *(clients, g.rows_out, tile.window_rows // together, together, g.channels_in, tile.window_columns),
            *(g.tiles_across, work.batch),
            dtype=work.dtype,
        )
        self.products: list[Matrices] = [
            (matrix.mT.expand(g.rows_out, -1, -1), outputs.view(g.rows_out, matrix.shape[0], -1), gradient)
            for matrix, outputs, gradient in zip(
                self.kernels.matrices, work.outputs, windows.flatten(6).flatten(2, 5), strict=True
            )
        ]
        self.map_sizes = (clients, g.rows_in, g.channels_in, 1, g.columns_in, work.batch)
        column = work.batch
        channel = g.columns_in * column
        row = g.channels_in * channel
        self.part_sizes = (clients, g.rows_out, together, g.channels_in, g.tiles_across, work.batch)
        self.part_strides = (g.rows_in * row, tile.rows * row, row, channel, tile.columns * column, 1)
        # Which part of every window's gradient is added at which place of the map.
        self.parts = [
            (windows[:, :, down, :, :, along], down * together * row + along * column)
            for down in range(tile.window_rows // together)
            for along in range(tile.window_columns)
        ]


def strips_of(geometry: ConvGeometry, sizes: torch.Size, inputs: Tensor) -> Tensor:
    """The strips as a view of a map, uncopied; any map whose batch is innermost will do."""
    client, row, channel, phase, column, _ = inputs.stride()
    step = geometry.tile.columns // geometry.column_phases * column
    return inputs.as_strided(sizes, (client, row, channel, column, phase, step, 1))


def _windows_over(strips: Tensor, tile: Tile, steps: int, across: int) -> Tensor:
    """(steps, window size, tiles across * batch): overlapping runs of consecutive strips of one client, uncopied."""
    strip = strips.stride(0)
    size = (steps, tile.window_rows * strip // across, across)
    return strips.as_strided(size, (tile.rows * strip, across, 1), strips.storage_offset())


def _column_competitors(geometry: ConvGeometry, outputs: Tensor, batch: int) -> tuple[Tensor, ...]:
    """`pool_columns` views (clients, rows, channels out, columns out, batch) of the outputs."""
    g, clients, rows = geometry, outputs.shape[0], geometry.rows_out * geometry.pool_rows
    if g.tile.columns > 1:
        return outputs.view(clients, rows, g.tile.columns, g.channels_out, g.columns_out, batch).unbind(2)
    return outputs.view(clients, rows, g.channels_out, g.columns_out, g.pool_columns, batch).unbind(4)


@dataclass(frozen=True, eq=False)
class Shelf:
    """Where a layer keeps its work arrays between passes; each pass holds its own until it puts it back.

    Arrays that are never put back (a forward pass without a backward pass) are simply forgotten and made anew.
    """

    geometry: ConvGeometry
    kept: OrderedDict[tuple[int, int, torch.dtype], list[ConvWork]] = field(default_factory=OrderedDict)

    def take(self, clients: int, batch: int, dtype: torch.dtype) -> ConvWork:
        """Arrays of these sizes with any content, for the caller alone."""
        resting = self.kept.get((clients, batch, dtype))
        if resting:
            return resting.pop()
        with torch.inference_mode(False):  # arrays born in inference mode could not be used in training
            return ConvWork(self.geometry, clients, batch, dtype)

    def put_back(self, work: ConvWork) -> None:
        """Keep the arrays for the next pass; those of the sizes unused for longest are given up."""
        key = (work.clients, work.batch, work.dtype)
        self.kept.setdefault(key, []).append(work)
        self.kept.move_to_end(key)
        while len(self.kept) > SHAPES_KEPT:
            self.kept.popitem(last=False)
