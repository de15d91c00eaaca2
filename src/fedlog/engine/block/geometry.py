"""Where the numbers of a convolution with pooling lie in memory, for a stack of clients.

A map is a tensor (clients, channels, rows, 1, columns, batch) with the batch innermost, so that every copy below moves
long contiguous runs. The map that enters the first layer may hold its columns by phase instead, (clients, channels,
rows, phases, columns / phases, batch): all columns 0 modulo the number of phases, then all columns 1, and so on.

A *tile* is what one column of a product computes: `tile_rows` x `tile_columns` neighbouring outputs of every channel,
from the window of inputs they see. The outputs of one tile are competitors of one pooling window, so merging them
turns pooling into maxima of whole contiguous blocks. It costs some multiplications by zero (a window of 6 x 5 for
2 x 1 outputs: a factor 1.2) and pays for them: fewer copies, and a product with more rows runs faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

# Matrix products with fewer rows than this ran at 45-60 % of the machine's speed, those with more at 80-90 %.
ROWS_OF_AN_EFFICIENT_PRODUCT = 32


@dataclass(frozen=True)
class ConvGeometry:
    """The sizes of one convolution (stride 1, no padding) followed by non-overlapping maximum pooling."""

    channels_in: int
    channels_out: int
    rows_in: int
    columns_in: int
    kernel_rows: int
    kernel_columns: int
    pool_rows: int
    pool_columns: int
    column_phases: int = 1

    @property
    def rows_out(self) -> int:
        """Rows after pooling; a last incomplete pooling window is dropped, as in PyTorch."""
        return (self.rows_in - self.kernel_rows + 1) // self.pool_rows

    @property
    def columns_out(self) -> int:
        """Columns after pooling."""
        return (self.columns_in - self.kernel_columns + 1) // self.pool_columns

    @property
    def tile_rows(self) -> int:
        """How many output rows one product computes together."""
        return self.pool_rows

    @property
    def tile_columns(self) -> int:
        """How many output columns one product computes together: more only where the product would have few rows."""
        return self.pool_columns if self.channels_out * self.tile_rows < ROWS_OF_AN_EFFICIENT_PRODUCT else 1

    @property
    def window_rows(self) -> int:
        """Input rows that one tile sees."""
        return self.kernel_rows + self.tile_rows - 1

    @property
    def window_columns(self) -> int:
        """Input columns that one tile sees."""
        return self.kernel_columns + self.tile_columns - 1

    @property
    def window_size(self) -> int:
        """Inputs that one tile sees, in all channels: the inner dimension of the product."""
        return self.channels_in * self.window_rows * self.window_columns

    @property
    def tiles_across(self) -> int:
        """Tiles next to each other in one row."""
        return self.columns_out * self.pool_columns // self.tile_columns

    @property
    def phases_wanted(self) -> int:
        """How the first layer's input should hold its columns: by phase where tiles step over columns evenly."""
        step = self.tile_columns
        return step if self.columns_in % step == 0 and self.window_columns % step == 0 else 1


def tiles_of(geometry: ConvGeometry, inputs: Tensor) -> Tensor:
    """A view (clients, channels, window rows, .., .., tiles down, tiles across, batch) of a map, uncopied."""
    clients, batch = inputs.shape[0], inputs.shape[-1]
    client, channel, row, phase, column, _ = inputs.stride()
    phases, step = geometry.column_phases, geometry.tile_columns
    sizes = (
        *(clients, geometry.channels_in, geometry.window_rows, geometry.window_columns // phases, phases),
        *(geometry.rows_out, geometry.tiles_across, batch),
    )
    strides = (client, channel, row, column, phase, geometry.tile_rows * row, step // phases * column, 1)
    return inputs.as_strided(sizes, strides)


def gather_tiles(geometry: ConvGeometry, inputs: Tensor) -> Tensor:
    """(clients, window size, tiles * batch): every window as a column of the matrix that the kernels multiply."""
    return tiles_of(geometry, inputs).reshape(inputs.shape[0], geometry.window_size, -1)


def fold_tiles(geometry: ConvGeometry, gradient: Tensor, batch: int) -> Tensor:
    """The gradient of a map from that of its windows (clients, window size, tiles * batch): a pixel sums its uses."""
    clients, g = gradient.shape[0], geometry
    folded = gradient.new_zeros(clients, g.channels_in, g.rows_in, 1, g.columns_in, batch)
    windows = gradient.view(
        *(clients, g.channels_in, g.window_rows, g.window_columns, g.rows_out, g.tiles_across, batch),
    )
    for row in range(g.window_rows):
        for column in range(g.window_columns):
            rows = slice(row, row + g.tile_rows * g.rows_out, g.tile_rows)
            columns = slice(column, column + g.tile_columns * g.tiles_across, g.tile_columns)
            folded[:, :, rows, 0, columns] += windows[:, :, row, column]
    return folded


def spread_kernels(geometry: ConvGeometry, weight: Tensor) -> Tensor:
    """(clients, tile outputs * channels out, window size): each kernel once per output of a tile, zeros around."""
    g = geometry
    spread = weight.new_zeros(
        *(weight.shape[0], g.tile_rows, g.tile_columns, g.channels_out, g.channels_in, g.window_rows, g.window_columns)
    )
    for row in range(g.tile_rows):
        for column in range(g.tile_columns):
            spread[:, row, column, :, :, row : row + g.kernel_rows, column : column + g.kernel_columns] = weight
    return spread.view(weight.shape[0], -1, g.window_size)


def fold_kernels(geometry: ConvGeometry, gradient: Tensor) -> Tensor:
    """The gradient of the kernels (clients, out, in, rows, columns) from that of the spread ones."""
    g = geometry
    spread = gradient.view(
        *(gradient.shape[0], g.tile_rows, g.tile_columns, g.channels_out, g.channels_in),
        *(g.window_rows, g.window_columns),
    )
    folded = spread[:, 0, 0, :, :, : g.kernel_rows, : g.kernel_columns].clone()
    for row in range(g.tile_rows):
        for column in range(g.tile_columns):
            if row or column:
                folded += spread[:, row, column, :, :, row : row + g.kernel_rows, column : column + g.kernel_columns]
    return folded
