"""Check that a client's statistics are not larger than they can be if the client clips as agreed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.core.clip import Clip, L2Clip
from fedlog.core.packed_matrix import find_diagonal
from fedlog.errors import InputError

# Noise this many standard deviations from zero practically never happens.
NOISE_REACH = 10.0
ROUNDING = 1e-5  # messages without noise may have been rounded to float32


@dataclass(frozen=True)
class UploadLimits:
    """The bounds on a client's statistics: what its clip of records or messages allows, with room for its noise."""

    clip: Clip | None = None
    message_norm: float | None = None
    noise_std: float = 0.0
    rounding: float = ROUNDING
    """How far rounding may have moved a value: this share of it, and this much more."""
    count_rounding: float = 0.0
    """By how much a count may be too small, because a message is rounded towards zero after it is clipped."""

    def check_statistics(self, sums: Tensor) -> None:
        """Raise InputError if statistics (n_class, m) exceed what the clip allows, or an exact count is negative."""
        sums = sums.to(torch.float64)
        stray = NOISE_REACH * self.noise_std
        counts = sums[:, 0]
        if not self.noise_std and bool((counts < 0).any()):
            entry = int((counts < 0).nonzero()[0, 0])
            found = float(counts[entry])
            raise InputError(f"the upload's record count of class {entry} must not be negative, found: {found:g}")
        if self.message_norm is not None:
            # The norm of d noise entries is within a few std of sqrt(d) * std.
            noise = self.noise_std * (sums.numel() ** 0.5 + NOISE_REACH)
            found = float(sums.norm())
            if not found <= self.message_norm * (1 + self.rounding) + noise:
                raise InputError(
                    f"the upload's L2 norm must be at most {self.message_norm:g} before noise, found: {found:g}"
                )
        if self.clip is not None:
            # The summed features of k records of a class cannot be larger than k times the clip.
            allowed = counts.clamp_min(0) * (1 + self.rounding) + self.rounding + self.count_rounding
            allowed = (
                allowed + stray + self.clip.compute_least_record_count(sums.new_full((1, sums.shape[1] - 1), stray))
            )
            needed = self.clip.compute_least_record_count(sums[:, 1:])
            if not bool((needed <= allowed).all()):  # NaN is refused too
                at = int((needed - allowed).argmax())
                raise InputError(
                    f"the upload's feature sums of class {at} are beyond the clip: no fewer than "
                    f"{float(needed[at]):g} clipped records can add up to them, but the upload's record count of this "
                    f"class is {float(counts[at]):g}"
                )

    def check_second_moments(self, sums: Tensor, second: Tensor) -> None:
        """Raise InputError if second moments are too large for records clipped to L2 norm R (R^2 for each record)."""
        if not isinstance(self.clip, L2Clip):
            return
        width = sums.shape[1] - 1
        squares = second if second.shape[1] == width else second[:, find_diagonal(width)]
        count = float((sums[:, 0].clamp_min(0) + self.count_rounding).sum())
        stray = NOISE_REACH * self.noise_std * (squares.numel() ** 0.5 + sums.shape[0] ** 0.5)
        allowed = self.clip.radius**2 * (count * (1 + self.rounding) + stray) + stray + self.rounding
        found = float(squares.sum())
        if not found <= allowed:
            raise InputError(
                f"the upload's squared features of {count:g} records must sum to at most {allowed:g}, found: {found:g}"
            )
