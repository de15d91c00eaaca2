"""Random crops and flips as one gather by index, straight into the layout that the first layer reads.

The images of a batch are copied together first, because single pixels of images scattered over a large pool would each
miss the cache. They are normalised already, so a crop is exact; the black frame around them exists only as an index.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Crops:
    """How crops of images of one size are read out of a black frame."""

    black: Tensor  # (channels,): what a black pixel becomes by normalisation
    row_starts: Tensor  # (rows, offsets) int32: where a crop's row begins in its image; huge in the frame
    column_reads: Tensor  # (columns, 2 * offsets) int32: the columns it reads, unflipped then flipped; likewise

    def gather(self, arranged: Tensor, positions: Tensor, rows: Tensor, columns: Tensor, flips: Tensor) -> Tensor:
        """The stacked batch of the images at `positions`, each cropped at its row and column and flipped or not.

        All arguments but the pool are (clients, batch) int64: a place in the pool, two offsets, and 0 or 1.
        """
        clients, batch = positions.shape
        size, height, width, channels = arranged.shape[1], len(self.row_starts), len(self.column_reads), len(self.black)
        pixels = arranged.new_empty(batch + 1, size)
        pixels[batch] = self.black.repeat_interleave(height * width)
        flat, end = pixels.view(-1), batch * size
        images = torch.arange(0, end, size, dtype=torch.int32)
        gathered = arranged.new_empty(clients, channels, height * width * batch)
        for client in range(clients):
            torch.index_select(arranged, 0, positions[client], out=pixels[:batch])
            starts = self.row_starts.index_select(1, rows[client]).add_(images)
            reads = self.column_reads.index_select(1, columns[client] + flips[client] * self.row_starts.shape[1])
            # Whatever lies in the frame is read from the black row behind the last image.
            index = (starts[:, None] + reads[None]).clamp_max_(end).view(-1)
            for channel, plane in enumerate(gathered[client]):
                torch.index_select(flat[channel * height * width :], 0, index, out=plane)
        return gathered.view(clients, channels, height, width, batch)


def crops_of(input_shape: tuple[int, ...], black: Tensor, padding: int) -> Crops:
    """The tables for images (channels, rows, columns)."""
    _, height, width = input_shape
    outside = 2**29  # beyond any batch of images, and two of them still fit 32 bits
    offsets = torch.arange(-padding, padding + 1)
    down = torch.arange(height)[:, None] + offsets
    place = torch.arange(width)[:, None]
    along = torch.cat([place + offsets, width - 1 - place + offsets], dim=1)
    rows = torch.where((down >= 0) & (down < height), down * width, outside)
    columns = torch.where((along >= 0) & (along < width), along, outside)
    return Crops(black, rows.to(torch.int32), columns.to(torch.int32))
