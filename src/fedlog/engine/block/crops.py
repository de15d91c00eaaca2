"""Random crops and flips as one gather: pixels by index, straight into the layout that the first layer reads.

The pool holds normalised pixels, so a crop is exact whatever the normalisation; the black frame around an image exists
only as an index to one black pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class CropPool:
    """Images (n, channels, rows, columns) from which crops of the same size are taken, out of a black frame."""

    pixels: Tensor  # (channels, 1 + n * rows * columns): a black pixel, then image after image
    row_starts: Tensor  # (rows, 2 * padding + 1): where a crop's row begins in its image; far below 0 in the frame
    columns_read: Tensor  # (columns, 2 * (2 * padding + 1)): the columns it reads, unflipped then flipped; likewise
    image_size: int
    batch_view: tuple[int, ...]  # channels, rows, phases, columns / phases

    def gather(self, positions: Tensor, rows: Tensor, columns: Tensor, flips: Tensor) -> Tensor:
        """The stacked batch of the images at `positions`, each cropped at its row and column and flipped or not.

        All arguments are (clients, batch) int64: a place in the pool, two offsets in 0..2 * padding, and 0 or 1.
        """
        clients, batch = positions.shape
        offsets = self.row_starts.shape[1]
        starts = self.row_starts.index_select(1, rows.reshape(-1)).add_(positions.reshape(-1) * self.image_size + 1)
        reads = self.columns_read.index_select(1, (columns + flips * offsets).reshape(-1))
        gathered = self.pixels.new_empty(clients, self.pixels.shape[0], len(starts) * len(reads) * batch)
        for client in range(clients):
            own = slice(client * batch, (client + 1) * batch)
            index = (starts[:, None, own] + reads[None, :, own]).clamp_min_(0).view(-1)
            torch.index_select(self.pixels, 1, index, out=gathered[client])
        return gathered.view(clients, *self.batch_view, batch).transpose(1, 2)


def crop_pool(images: Tensor, black: Tensor, padding: int, phases: int) -> CropPool:
    """The pool of these normalised images; `black` (channels,) is what a black pixel becomes by normalisation."""
    n, channels, height, width = images.shape
    pixels = torch.empty(channels, 1 + n * height * width, dtype=images.dtype)
    pixels[:, 0] = black
    pixels[:, 1:] = images.transpose(0, 1).reshape(channels, -1)
    outside = -2 * (pixels.shape[1] + height * width)  # stays negative whatever is added to it
    offsets = torch.arange(-padding, padding + 1)
    across = torch.arange(width).view(width // phases, phases).t().reshape(-1, 1)  # the order of the first layer
    down = torch.arange(height).view(-1, 1) + offsets
    along = torch.cat([across + offsets, width - 1 - across + offsets], dim=1)
    return CropPool(
        pixels,
        torch.where((down >= 0) & (down < height), down * width, outside),
        torch.where((along >= 0) & (along < width), along, outside),
        height * width,
        (channels, height, phases, width // phases),
    )
