"""Public maps of features before anything is summed: everyone derives the same ones from a name and a seed.

Behind an encoder's name, each after a plus sign: `identity+project:64+unit`. A third part is the seed: `project:64:7`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedlog.core.keys import Key
from fedlog.errors import InputError

LARGEST_WIDTH = 2**16


class FeatureMap(nn.Module):
    """A fixed function of features (n, in) -> (n, out). The name fixes its weights: nothing to train."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        self._function = function
        self.width = width

    def forward(self, features: Tensor) -> Tensor:
        """The mapped features."""
        return self._function(features)


def take_directions(directions: Tensor, size: int) -> FeatureMap:
    """The features along the first `size` columns of `directions` (width, at least size)."""
    if not 1 <= size <= directions.shape[1]:
        raise InputError(f"expected 1 to {directions.shape[1]} principal directions, found: {size}")
    matrix = directions[:, :size].clone()
    return FeatureMap(lambda x: x @ matrix.to(x), size)


def parse_map(text: str, width: int) -> FeatureMap:
    """The map of that name on features of that width: unit, scale:S, power:P, project:N, expand:N or buckets:N."""
    kind, *rest = text.split(":")
    makers = {
        "unit": _unit,
        "scale": _scale,
        "power": _power,
        "project": _project,
        "expand": _expand,
        "buckets": _buckets,
    }
    try:
        if kind not in makers or len(rest) > 2 or bool(rest) == (kind == "unit"):
            raise ValueError
        number = float(rest[0]) if rest else 0.0
        seed = int(rest[1]) if len(rest) > 1 else 0
        if kind not in ("unit", "scale", "power") and (number != int(number) or not 1 <= number <= LARGEST_WIDTH):
            raise ValueError
        return makers[kind](width, number, Key(seed).child("feature map", kind))
    except ValueError:
        raise InputError(
            f"unknown map of features: {text}",
            hint="unit, scale:S, power:P, project:N, principal:N, expand:N or buckets:N",
        ) from None


def _unit(width: int, number: float, key: Key) -> FeatureMap:
    """Each record's features divided by their length; a record of zeros stays."""
    return FeatureMap(lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-12), width)


def _scale(width: int, number: float, key: Key) -> FeatureMap:
    """The features multiplied by the map's factor."""
    if not number > 0:
        raise ValueError
    return FeatureMap(lambda x: x * number, width)


def _power(width: int, number: float, key: Key) -> FeatureMap:
    """Each feature's size to a power, its sign kept. A power below 1 shortens tails, which suits Gaussian heads."""
    if not number > 0:
        raise ValueError
    return FeatureMap(lambda x: torch.sign(x) * x.abs() ** number, width)


def _project(width: int, number: float, key: Key) -> FeatureMap:
    """A random orthogonal projection to N features, scaled so that lengths stay the same on average."""
    size = int(number)
    if size > width:
        raise InputError(f"a projection cannot widen features: {width} to {size}", hint=f"expand:{size}")
    normal = torch.randn(width, size, dtype=torch.float64, generator=key.torch())
    matrix = (torch.linalg.qr(normal).Q * (width / size) ** 0.5).to(torch.float32)
    return FeatureMap(lambda x: x @ matrix.to(x), size)


def _expand(width: int, number: float, key: Key) -> FeatureMap:
    """N random ReLU features."""
    size = int(number)
    matrix = torch.randn(width, size, generator=key.torch()) / width**0.5
    return FeatureMap(lambda x: torch.relu(x @ matrix.to(x)), size)


def _buckets(width: int, number: float, key: Key) -> FeatureMap:
    """Each feature as one of N buckets, one-hot; the edges are quantiles of a normal with the record's spread."""
    size = int(number)
    shares = torch.arange(1, size, dtype=torch.float64) / size
    edges = torch.special.ndtri(shares).to(torch.float32)

    def one_hot(x: Tensor) -> Tensor:
        spread = x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-12)
        place = ((x / spread)[..., None] > edges.to(x)).sum(-1)
        return nn.functional.one_hot(place, size).to(x.dtype).flatten(-2)

    if width * size > LARGEST_WIDTH:
        raise InputError(f"buckets make {width * size} features of {width}", hint="project first: +project:64")
    return FeatureMap(one_hot, width * size)
