"""Turn raw records into inputs of a body: normalise them, and crop and flip training images.

The order is that of the paper's code: pad with zeros (black pixels, before normalisation), crop, flip, normalise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, eq=False)
class Augmentation:
    """Where each record is cropped and whether it is flipped, drawn at random in advance."""

    top: Tensor  # (n,) int64 in 0..2*padding: the row of the padded image where the crop begins
    left: Tensor  # (n,) int64 in 0..2*padding: the column of the padded image where the crop begins
    flips: Tensor  # (n,) bool: whether the crop is mirrored


@dataclass(frozen=True)
class Transform:
    """How raw records become float32 inputs: scaling, and random crops and flips of training images.

    `mean` and `std` are for each channel, the second dimension; uint8 records are first divided by 255. Empty tuples
    mean no scaling. Only images (n, C, H, W) can be cropped or flipped.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    crop_padding: int = 0  # 0: no random crop
    flip: bool = False

    @cached_property
    def augments(self) -> bool:
        """Whether training records are cropped or flipped at random."""
        return self.crop_padding > 0 or self.flip

    def prepare(self, raw: Tensor) -> Tensor:
        """The float32 inputs of the raw records (n, C, ...), without augmentation."""
        values = raw.to(torch.float32)
        if raw.dtype == torch.uint8:
            values = values / 255.0
        if not self.mean:
            return values
        shape = (1, len(self.mean)) + (1,) * (raw.ndim - 2)
        mean = torch.tensor(self.mean, dtype=torch.float32, device=raw.device).reshape(shape)
        std = torch.tensor(self.std, dtype=torch.float32, device=raw.device).reshape(shape)
        return (values - mean) / std

    def augment(self, raw: Tensor, draws: Augmentation) -> Tensor:
        """The float32 inputs of the raw images (n, C, H, W), cropped and flipped as `draws` says."""
        n, _, height, width = raw.shape
        padded = pad(raw, (self.crop_padding,) * 4)
        steps = torch.arange(width, device=raw.device)
        # A flipped crop reads the same columns from right to left.
        order = torch.where(draws.flips.to(raw.device)[:, None], steps.flip(0), steps)
        columns = draws.left.to(raw.device)[:, None] + order
        rows = draws.top.to(raw.device)[:, None] + torch.arange(height, device=raw.device)
        record = torch.arange(n, device=raw.device)[:, None, None]
        cropped = padded.permute(0, 2, 3, 1)[record, rows[:, :, None], columns[:, None, :]]  # (n, H, W, C)
        return self.prepare(cropped.permute(0, 3, 1, 2).contiguous())


IDENTITY = Transform()


def draw_augmentation(transform: Transform, n: int, generator: torch.Generator) -> Augmentation:
    """Draw a random crop and flip for each of n records; no crop or no flip if the transform does none."""
    offsets = 2 * transform.crop_padding + 1
    top = torch.randint(0, offsets, (n,), generator=generator)
    left = torch.randint(0, offsets, (n,), generator=generator)
    flips = torch.rand(n, generator=generator) < 0.5 if transform.flip else torch.zeros(n, dtype=torch.bool)
    return Augmentation(top, left, flips)
