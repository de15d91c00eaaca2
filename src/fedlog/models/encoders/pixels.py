"""Prepare images as the input of a pretrained encoder, in three steps.

1. Pixels become float32 from 0 to 255; a grey image is repeated in three channels.
2. Images are resized to `side` x `side` with bicubic interpolation (a = -0.75, pixel centres at half steps, no crop,
   the aspect ratio may change), with anti-aliasing if a side shrinks; values are cut to 0..255.
3. Each channel becomes (value - mean) / std, with mean and std for pixels from 0 to 255.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from fedlog.errors import InputError

# The mean and std of ImageNet's pixels; most exported encoders were trained with them.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)


def scale_to_255(images: Tensor) -> Tensor:
    """Images (n, channels, height, width) with pixels from 0 to 255: uint8 unchanged, floats multiplied by 255."""
    return images if images.dtype == torch.uint8 else images * 255


def refuse_unscaled_images(images: Tensor) -> None:
    """Raise an InputError for float images with numbers outside 0 to 1, which an encoder would misread."""
    if images.dtype == torch.uint8 or not images.numel():
        return
    low, high = float(images.min()), float(images.max())
    if low < 0 or high > 1:
        raise InputError(
            f"an image encoder needs pixels from 0 to 255 as uint8, or from 0 to 1 as float32, found: float32 from "
            f"{low:g} to {high:g}",
            hint="convert them: images.astype('uint8'), or divide by the largest value that a pixel can have",
        )


@dataclass(frozen=True)
class PixelFormat:
    """How an encoder wants its images: `side` x `side` pixels from 0 to 255, less `mean`, divided by `std`."""

    side: int
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def prepare(self, raw: Tensor) -> Tensor:
        """Images for the encoder: pixels (n, 1 or 3, height, width) from 0 to 255 -> (n, 3, side, side) float32."""
        if raw.ndim != 4 or raw.shape[1] not in (1, 3):
            raise InputError(
                f"an image encoder needs records of shape (1 or 3, height, width), found: {tuple(raw.shape[1:])}",
                hint="use --body identity for records that are already features",
            )
        values = raw.to(torch.float32)
        if values.shape[1] == 1:
            values = values.expand(-1, 3, -1, -1)
        if tuple(values.shape[2:]) != (self.side, self.side):
            shrinks = max(values.shape[2:]) > self.side
            values = interpolate(
                values, (self.side, self.side), mode="bicubic", align_corners=False, antialias=shrinks
            ).clamp(0, 255)
        mean, std = (torch.tensor(each).reshape(1, 3, 1, 1) for each in (self.mean, self.std))
        return (values - mean) / std

    def describe(self) -> dict[str, object]:
        """The side, mean and std as JSON values, from which an encoder's digest is computed."""
        return {"resize": "bicubic, antialias where it shrinks", **asdict(self)}
