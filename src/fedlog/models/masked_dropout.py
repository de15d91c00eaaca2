"""Dropout layers that get their mask from outside instead of drawing random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class MaskedDropout(nn.Module):
    """A dropout layer that gets its mask from outside: factors of 0 or 1 / (1 - p) in training, 1 in evaluation."""

    mask: Tensor

    def __init__(self, p: float, *, per_channel: bool) -> None:
        super().__init__()
        self.p = p
        self.per_channel = per_channel
        self.register_buffer("mask", torch.ones(()), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply the inputs by the mask, which has one factor for each record and unit (or channel)."""
        mask = self.mask
        if mask.ndim:
            mask = mask.reshape(*mask.shape, *(1,) * (inputs.ndim - mask.ndim))
        return inputs * mask


@dataclass(frozen=True)
class DropoutLayer:
    """A dropout layer in a body: its name, its rate, and the shape of one record's mask."""

    name: str
    p: float
    shape: tuple[int, ...]


def replace_dropout(module: nn.Module) -> nn.Module:
    """The module with a `MaskedDropout` for every dropout layer, and without the batch counters of norm layers."""
    if isinstance(module, DROPOUTS):
        return MaskedDropout(module.p, per_channel=not isinstance(module, nn.Dropout))
    # `named_children` would skip the second name of a layer that has two, and leave a random layer there.
    for name, child in list(module._modules.items()):
        if child is not None:
            setattr(module, name, replace_dropout(child))
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        module.num_batches_tracked = None  # not used with a fixed momentum, and a counter cannot be averaged
    return module


def collect_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and running statistics by name, without dropout masks and whole-number buffers."""
    drawn = {id(layer.mask) for layer in module.modules() if isinstance(layer, MaskedDropout)}
    buffers = {
        name: value
        for name, value in module.named_buffers()
        if value is not None and id(value) not in drawn and value.is_floating_point()
    }
    return dict(module.named_parameters()) | buffers
