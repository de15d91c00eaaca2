"""Where the numbers of a convolution with pooling lie in memory, for a stack of clients.

A map is a tensor (clients, rows, channels, 1, columns, batch), the batch innermost so that every copy moves long
contiguous runs. The map that enters the first layer may hold its columns by phase instead, (clients, rows, channels,
phases, columns / phases, batch): all columns 0 modulo the number of phases, then all columns 1, and so on.

The inputs are unrolled along the columns only, into *strips*: one matrix (channels * window columns, tiles across *
batch) per input row. A window over several rows is then a run of consecutive strips, which is, as it lies in memory,
the matrix that a product needs: nothing is copied once per kernel row, and the strips stay in the cache.

A *tile* is what one column of a product computes: `rows` x `columns` neighbouring outputs of every channel, from the
window they see together. Merging the outputs of a pooling window into a tile costs multiplications by zero (a window of
6 x 6 for 2 x 2 outputs of a 5 x 5 kernel: a factor 1.44) and pays where the product would have few rows otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

# With fewer rows than this, products ran at half the machine's speed; with more, at 80-90 % of it.
ROWS_OF_AN_EFFICIENT_PRODUCT = 16


@dataclass(frozen=True)
class Tile:
    """So many neighbouring outputs are computed together, from a window of this size."""

    rows: int
    columns: int
    window_rows: int
    window_columns: int


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

    @cached_property
    def rows_out(self) -> int:
        """Rows after pooling; a last incomplete pooling window is dropped, as in PyTorch."""
        return (self.rows_in - self.kernel_rows + 1) // self.pool_rows

    @cached_property
    def columns_out(self) -> int:
        """Columns after pooling."""
        return (self.columns_in - self.kernel_columns + 1) // self.pool_columns

    @cached_property
    def strips(self) -> int:
        """Input rows that reach an output."""
        return self.rows_out * self.pool_rows + self.kernel_rows - 1

    @cached_property
    def tile(self) -> Tile:
        """The tile of the forward product and of the kernels' gradient."""
        merge = self.channels_out < ROWS_OF_AN_EFFICIENT_PRODUCT
        return self._tile(self.pool_rows if merge else 1, self.pool_columns if merge else 1)

    @cached_property
    def gradient_tile(self) -> Tile:
        """The tile of the inputs' gradient: merging rows there means fewer overlapping windows to add up."""
        return self._tile(self.pool_rows, self.tile.columns)

    def _tile(self, rows: int, columns: int) -> Tile:
        return Tile(rows, columns, self.kernel_rows + rows - 1, self.kernel_columns + columns - 1)

    @cached_property
    def tiles_across(self) -> int:
        """Tiles next to each other in one row."""
        return self.columns_out * self.pool_columns // self.tile.columns

    @cached_property
    def phases_wanted(self) -> int:
        """How the first layer's input should hold its columns: by phase where tiles step over columns evenly."""
        step = self.tile.columns
        return step if self.columns_in % step == 0 and self.tile.window_columns % step == 0 else 1
