"""Clipping: bounds on what one record, or one client, can add to the statistics, and the sensitivity that follows.

Clips act on features without the constant, (..., m - 1). They are differentiable, so a body can be trained with the
same clip that its statistics use. Which privacy guarantee a bound gives also depends on how the body was trained;
`fedlog.privacy` decides that.
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

    def sensitivity(self, n_columns: int) -> float:
        """The largest L2 norm of one record's statistic; `n_columns` is m, the number of features with the constant."""

    def compute_least_record_count(self, sums: Tensor) -> Tensor:
        """A lower bound (...,) on the number of clipped records that can have these sums of features (..., m - 1)."""


@dataclass(frozen=True)
class Clamp:
    """Clamps each feature to [-bound, bound], as in the paper."""

    bound: float

    def __post_init__(self) -> None:
        _require_positive("clamp bound", self.bound)

    def __call__(self, features: Tensor) -> Tensor:
        """The clamped features, same shape (..., m - 1)."""
        return features.clamp(-self.bound, self.bound)

    def sensitivity(self, n_columns: int) -> float:
        """The largest L2 norm of one record's statistic: sqrt(1 + (m - 1) * bound^2), where m is `n_columns`."""
        return math.sqrt(1 + (n_columns - 1) * self.bound**2)

    def compute_least_record_count(self, sums: Tensor) -> Tensor:
        """The fewest records that can have these sums: the largest |sum| of a feature, divided by the bound."""
        return sums.abs().amax(-1) / self.bound


@dataclass(frozen=True)
class L2Clip:
    """Scales each record's features down to L2 norm `radius` if their norm is larger."""

    radius: float

    def __post_init__(self) -> None:
        _require_positive("clip radius", self.radius)

    def __call__(self, features: Tensor) -> Tensor:
        """The clipped features, same shape (..., m - 1). Even with rounding, no row has an L2 norm above `radius`."""
        return clip_row_norms(features, self.radius)

    def sensitivity(self, n_columns: int) -> float:
        """The largest L2 norm of one record's statistic: sqrt(1 + radius^2), for any number of features."""
        return math.sqrt(1 + self.radius**2)

    def compute_least_record_count(self, sums: Tensor) -> Tensor:
        """The fewest records that can have these sums: the L2 norm of the sums, divided by the radius."""
        lengths: Tensor = torch.linalg.vector_norm(sums, dim=-1)
        return lengths / self.radius


def parse_clip(text: str) -> Clip:
    """The clip named by `clamp:B` or `l2:R`; InputError for any other text."""
    kind, _, number = text.partition(":")
    kinds: dict[str, Callable[[float], Clip]] = {"clamp": Clamp, "l2": L2Clip}
    try:
        return kinds[kind](float(number))
    except (KeyError, ValueError):
        raise InputError(
            f"a clip must be clamp:B (bounds each feature) or l2:R (bounds each record's L2 norm), found: {text}",
            hint="for example clamp:2",
        ) from None


def extend_clip_to_target(clip: Clip) -> L2Clip:
    """The L2 clip that bounds a record's features and its regression target together; targets lie in -1..1."""
    if not isinstance(clip, L2Clip):
        raise InputError(
            "a private regression needs a clip of each record's norm (l2:R), found: a clip of each feature (clamp:B)",
            hint="--clip l2:1, and a body whose features have an L2 norm of about 1, such as `identity+scale:0.3`",
        )
    return L2Clip(math.hypot(clip.radius, 1.0))


def clip_client_sums(sums: Tensor, norm: float) -> Tensor:
    """Scale a client's `sums`, taken as one vector, down to L2 norm `norm` if their norm is larger.

    Adding or removing a client then changes the sum over clients by at most `norm`; replacing a client's data changes
    it by at most 2 * `norm`.
    """
    _require_positive("message norm", norm)
    return clip_row_norms(sums.reshape(-1), norm).reshape(sums.shape)


def clip_row_norms(rows: Tensor, radius: float) -> Tensor:
    """Scale each row of (..., d) down to L2 norm `radius` if its norm is larger.

    Even with rounding, no row of the result has a norm above `radius`.
    """
    length = torch.linalg.vector_norm(rows.to(torch.float64), dim=-1, keepdim=True)
    # A sum of d squares may be rounded down d times; without this margin a row that is too long could pass.
    length = length * (1 + (rows.shape[-1] + 8) * torch.finfo(torch.float64).eps)
    # Rounding the scale and the products could leave a row an ulp too long, and the sensitivity would be wrong.
    margin = 1 - 2 * torch.finfo(rows.dtype).eps
    # clamp_min, rather than a minimum with 1 afterwards, keeps the gradient finite for rows of zeros.
    scale = torch.where(length > radius, margin * radius / length.clamp_min(radius), 1.0)
    return rows * scale.to(rows.dtype)


def _require_positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"the {what} must be a finite number above 0, found: {value}")
