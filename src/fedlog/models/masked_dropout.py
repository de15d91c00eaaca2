"""Dropout layers that get their mask from outside instead of drawing random numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
ALPHA_DROPOUTS = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_SELU_LIMIT = -1.7580993408473766  # SELU of minus infinity, to the digits that PyTorch has


class MaskedLayer(nn.Module):
    """A layer that drops the units (or channels) for which it gets a 0 from outside; without a mask it drops none."""

    mask: Tensor

    def __init__(self, p: float, *, per_channel: bool) -> None:
        super().__init__()
        self.p = p
        self.per_channel = per_channel
        self.register_buffer("mask", torch.ones(()), persistent=False)


class MaskedDropout(MaskedLayer):
    """A dropout layer that gets its mask from outside: factors of 0 or 1 / (1 - p); in evaluation it gets none."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply the inputs by the mask, one factor for each record and unit (or channel); without a mask, by 1."""
        return inputs * (_add_axes(self.mask, inputs) if self.mask.ndim else self.mask)


class MaskedAlphaDropout(MaskedLayer):
    """An alpha dropout layer that gets its mask from outside: 0 for what is dropped, any other number for the rest."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply alpha dropout where the mask is 0; return the inputs if there is no mask, as in evaluation."""
        return apply_alpha_dropout(inputs, _add_axes(self.mask, inputs), self.p) if self.mask.ndim else inputs


def apply_alpha_dropout(inputs: Tensor, mask: Tensor, p: float) -> Tensor:
    """Set the inputs where `mask` is 0 to SELU's lower limit, then scale and shift all of them.

    An input x becomes a (x m + l (1 - m)) + b, with l = SELU(-infinity), m = 1 for what is kept and 0 for the rest,
    a = ((1 - p) (1 + p l^2))^(-1/2) and b = -a p l. On average, this keeps a mean of 0 and a variance
    of 1 (Klambauer et al. 2017).
    """
    kept = (mask != 0).to(inputs.dtype)
    scale = 1 / math.sqrt((1 - p) * (1 + p * _SELU_LIMIT**2))
    return inputs * (scale * kept) + scale * _SELU_LIMIT * (1 - p - kept)


def _add_axes(mask: Tensor, inputs: Tensor) -> Tensor:
    return mask.reshape(*mask.shape, *(1,) * (inputs.ndim - mask.ndim))


@dataclass(frozen=True)
class DropoutLayer:
    """A dropout layer in a body: its name, its rate, the shape of one record's mask, whether it is alpha dropout."""

    name: str
    p: float
    shape: tuple[int, ...]
    is_alpha: bool = False

    def apply(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """The inputs after dropout with this mask, which has the inputs' shape."""
        return apply_alpha_dropout(inputs, mask, self.p) if self.is_alpha else inputs * mask


def replace_dropout(module: nn.Module) -> nn.Module:
    """The module with a `MaskedLayer` for every dropout layer, and without the batch counters of norm layers."""
    if isinstance(module, DROPOUTS):
        return MaskedDropout(module.p, per_channel=not isinstance(module, nn.Dropout))
    if isinstance(module, ALPHA_DROPOUTS):
        return MaskedAlphaDropout(module.p, per_channel=isinstance(module, nn.FeatureAlphaDropout))
    # `named_children` would skip the second name of a layer that has two, and leave a random layer there.
    for name, child in list(module._modules.items()):
        if child is not None:
            setattr(module, name, replace_dropout(child))
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        module.num_batches_tracked = None  # not used with a fixed momentum, and a counter cannot be averaged
    return module


def collect_parameters(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and running statistics by name, without dropout masks and whole-number buffers."""
    drawn = {id(layer.mask) for layer in module.modules() if isinstance(layer, MaskedLayer)}
    buffers = {
        name: value
        for name, value in module.named_buffers()
        if value is not None and id(value) not in drawn and value.is_floating_point()
    }
    return dict(module.named_parameters()) | buffers
