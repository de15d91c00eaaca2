"""Feature maps: fixed functions of features. All clients make the same feature map from its name and a seed.

In a body's name the feature maps follow the encoder, each after a plus sign: `identity+project:64+unit`. The name of a
feature map may end with a seed: `project:64:7`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedlog.core.keys import Key
from fedlog.errors import InputError

LARGEST_WIDTH = 2**16


class FeatureMap(nn.Module):
    """A fixed function of features (n, in) -> (n, out) with nothing to train."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        self._function = function
        self.width = width

    def forward(self, features: Tensor) -> Tensor:
        """The function's values, (n, in) -> (n, out)."""
        return self._function(features)


def make_direction_map(directions: Tensor, size: int) -> FeatureMap:
    """The feature map `principal:N`: projects features onto the first N = `size` columns of `directions`."""
    if not 1 <= size <= directions.shape[1]:
        raise InputError(
            f"feature map principal:{size}: the number of principal directions must be 1 to {directions.shape[1]}, "
            f"found: {size}",
            hint=f"principal:{directions.shape[1]} uses all directions",
        )
    matrix = directions[:, :size].clone()
    return FeatureMap(lambda x: x @ matrix.to(x), size)


def make_feature_map(text: str, width: int) -> FeatureMap:
    """The feature map of that name for `width` features: unit, scale:S, power:P, project:N, expand:N or buckets:N.

    `unit` divides a record's features by their L2 norm, `scale` multiplies them by S, `power` raises the absolute value
    of each feature to the power P and keeps its sign. `project` and `expand` make N random features, `buckets` codes
    each feature as one of N buckets. For `principal:N` see `make_direction_map`.
    """
    kind, *rest = text.split(":")
    # These do not change the width. A power below 1 shortens tails, which suits Gaussian heads.
    simple: dict[str, Callable[[Tensor], Tensor]] = {
        "unit": lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-12),
        "scale": lambda x: x * number,
        "power": lambda x: torch.sign(x) * x.abs() ** number,
    }
    makers = {"project": _make_projection, "expand": _make_expansion, "buckets": _make_bucket_map}
    try:
        if kind not in (*simple, *makers) or len(rest) > 2 or bool(rest) == (kind == "unit"):
            raise ValueError
        number = float(rest[0]) if rest else 1.0
        seed = int(rest[1]) if len(rest) > 1 else 0
        if not number > 0:
            raise ValueError
        if kind in simple:
            return FeatureMap(simple[kind], width)
        if number != int(number) or not 1 <= number <= LARGEST_WIDTH:
            raise ValueError
        return makers[kind](width, int(number), Key(seed).child("feature map", kind))
    except ValueError:
        raise InputError(
            f"unknown feature map: {text}",
            hint="one of unit, scale:S, power:P, project:N, principal:N, expand:N, buckets:N",
        ) from None


def _make_projection(width: int, size: int, key: Key) -> FeatureMap:
    """A random orthogonal projection to `size` features, scaled so that L2 norms stay the same on average."""
    if size > width:
        raise InputError(
            f"feature map project:{size} cannot increase the number of features, found: {width} before it",
            hint=f"use expand:{size}",
        )
    normal = torch.randn(width, size, dtype=torch.float64, generator=key.torch())
    matrix = (torch.linalg.qr(normal).Q * (width / size) ** 0.5).to(torch.float32)
    return FeatureMap(lambda x: x @ matrix.to(x), size)


def _make_expansion(width: int, size: int, key: Key) -> FeatureMap:
    """The feature map to `size` features, each the ReLU of a random linear function of the given features."""
    matrix = torch.randn(width, size, generator=key.torch()) / width**0.5
    return FeatureMap(lambda x: torch.relu(x @ matrix.to(x)), size)


def _make_bucket_map(width: int, size: int, key: Key) -> FeatureMap:
    """The feature map that codes each feature as one of `size` buckets (one-hot).

    The edges of the buckets are quantiles of a normal distribution with mean 0. Its std is the root mean square of the
    record's features.
    """
    shares = torch.arange(1, size, dtype=torch.float64) / size
    edges = torch.special.ndtri(shares).to(torch.float32)

    def one_hot(x: Tensor) -> Tensor:
        spread = x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-12)
        place = ((x / spread)[..., None] > edges.to(x)).sum(-1)
        return nn.functional.one_hot(place, size).to(x.dtype).flatten(-2)

    if width * size > LARGEST_WIDTH:
        raise InputError(
            f"feature map buckets:{size} would turn {width} features into {width * size} (at most {LARGEST_WIDTH})",
            hint=f"project first: +project:{min(64, LARGEST_WIDTH // size)}+buckets:{size}",
        )
    return FeatureMap(one_hot, width * size)
