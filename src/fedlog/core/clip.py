"""Bounds on what one record, or one client, can add to the statistics: clipping, and the sensitivity it buys.

Clips act on features without the constant, (..., m - 1), and are differentiable, so that bodies are trained behind
the same clip that the statistics go through. How far a bound carries as a privacy guarantee depends on how the body
was trained, and that is not decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedlog.errors import InputError


class Clip(Protocol):
    """A bound on the features of one record."""

    def __call__(self, features: Tensor) -> Tensor:
        """The clipped features, same shape (..., m - 1)."""

    def sensitivity(self, width: int) -> float:
        """The largest L2 norm of one record's statistic, the constant included; `width` is m."""

    def records_behind(self, sums: Tensor) -> Tensor:
        """The smallest number of clipped records, (...,), whose features can add up to these sums (..., m - 1)."""


@dataclass(frozen=True)
class Clamp:
    """Each feature is clamped to [-bound, bound], as in the paper."""

    bound: float

    def __post_init__(self) -> None:
        _require_positive("clamp bound", self.bound)

    def __call__(self, features: Tensor) -> Tensor:
        """The clamped features, same shape (..., m - 1)."""
        return features.clamp(-self.bound, self.bound)

    def sensitivity(self, width: int) -> float:
        """sqrt(1 + (m - 1) * bound^2) for `width` = m."""
        return math.sqrt(1 + (width - 1) * self.bound**2)

    def records_behind(self, sums: Tensor) -> Tensor:
        """The largest |sum| of a feature, divided by the bound."""
        return sums.abs().amax(-1) / self.bound


@dataclass(frozen=True)
class L2Clip:
    """Each record's features are scaled down to L2 norm `radius` if they are longer."""

    radius: float

    def __post_init__(self) -> None:
        _require_positive("clip radius", self.radius)

    def __call__(self, features: Tensor) -> Tensor:
        """The clipped features, same shape (..., m - 1); no row is longer than the radius, rounding included."""
        return shorten_rows(features, self.radius)

    def sensitivity(self, width: int) -> float:
        """sqrt(1 + radius^2), whatever the width."""
        return math.sqrt(1 + self.radius**2)

    def records_behind(self, sums: Tensor) -> Tensor:
        """The length of the sums, divided by the radius."""
        lengths: Tensor = torch.linalg.vector_norm(sums, dim=-1)
        return lengths / self.radius


def parse_clip(text: str) -> Clip:
    """The clip that `clamp:B` or `l2:R` names; InputError for anything else."""
    kind, _, number = text.partition(":")
    kinds: dict[str, Callable[[float], Clip]] = {"clamp": Clamp, "l2": L2Clip}
    try:
        return kinds[kind](float(number))
    except (KeyError, ValueError):
        raise InputError(
            f"a clip must be clamp:B (each feature) or l2:R (each record): {text}", hint="for example clamp:2"
        ) from None


def clip_with_number(clip: Clip) -> L2Clip:
    """The bound on a record's features together with its number, which is cut to -1 to 1."""
    if not isinstance(clip, L2Clip):
        raise InputError(
            "a private regression needs a clip of each record's length (l2:R), found: a clamp of each feature",
            hint="--clip l2:1, with a body whose features are about as long: `identity+scale:0.3`",
        )
    return L2Clip(math.hypot(clip.radius, 1.0))


def clip_message(sums: Tensor, norm: float) -> Tensor:
    """A client's whole message scaled down to L2 norm `norm` if it is longer; any shape, taken as one vector.

    Neighbours that differ by one client then differ by at most `norm`; two data sets of one client by 2 * `norm`.
    """
    _require_positive("message norm", norm)
    return shorten_rows(sums.reshape(-1), norm).reshape(sums.shape)


def shorten_rows(rows: Tensor, radius: float) -> Tensor:
    """The rows (..., d), those longer than `radius` scaled down; none is longer than it, rounding included."""
    length = torch.linalg.vector_norm(rows.to(torch.float64), dim=-1, keepdim=True)
    # A sum of d squares may be rounded down d times, and then a row that is too long would pass for one that fits.
    length = length * (1 + (rows.shape[-1] + 8) * torch.finfo(torch.float64).eps)
    # Rounding the scale and the products could leave a row an ulp too long, and the sensitivity would be false.
    margin = 1 - 2 * torch.finfo(rows.dtype).eps
    # clamp_min, rather than a minimum with 1 afterwards, keeps the gradient finite for rows of zeros.
    scale = torch.where(length > radius, margin * radius / length.clamp_min(radius), 1.0)
    return rows * scale.to(rows.dtype)


def _require_positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"the {what} must be a finite number above 0, found: {value}")
