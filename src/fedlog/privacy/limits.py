"""How large statistics can be if a client clips as agreed; the server refuses larger ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.core.clip import Clip, L2Clip
from fedlog.core.triangle import diagonal_places
from fedlog.errors import InputError

# Noise this many standard deviations out does not happen in the lifetime of a federation.
NOISE_REACH = 10.0
ROUNDING = 1e-5  # messages without noise may have been rounded to float32


@dataclass(frozen=True)
class Limits:
    """How large statistics can be: the clip on records or on the whole message, and the noise added afterwards."""

    clip: Clip | None = None
    message_norm: float | None = None
    noise_std: float = 0.0
    rounding: float = ROUNDING
    cut_off: float = 0.0
    """By how much a count may be too small, as one that was scaled down and then rounded towards zero is."""

    def check(self, sums: Tensor) -> None:
        """Refuse statistics (n_class, m) beyond the clip, and negative counts without noise, by an InputError."""
        sums = sums.to(torch.float64)
        stray = NOISE_REACH * self.noise_std
        counts = sums[:, 0]
        if not self.noise_std and bool((counts < 0).any()):
            entry = int((counts < 0).nonzero()[0, 0])
            raise InputError(f"count {entry} is negative where no noise was added: {float(counts[entry]):g}")
        if self.message_norm is not None:
            # The norm of d noise entries is within a few std of sqrt(d) * std.
            noise = self.noise_std * (sums.numel() ** 0.5 + NOISE_REACH)
            found = float(sums.norm())
            if not found <= self.message_norm * (1 + self.rounding) + noise:
                raise InputError(f"a message beyond its norm: {found:g} (at most {self.message_norm:g} before noise)")
        if self.clip is not None:
            # With k records of a class, their summed features reach as far as k records can, and no farther.
            allowed = counts.clamp_min(0) * (1 + self.rounding) + self.rounding + self.cut_off
            allowed = allowed + stray + self.clip.least_records(sums.new_full((1, sums.shape[1] - 1), stray))
            needed = self.clip.least_records(sums[:, 1:])
            if not bool((needed <= allowed).all()):  # NaN is refused too
                at = int((needed - allowed).argmax())
                raise InputError(
                    f"statistics beyond the clip: the features of class {at} would take {float(needed[at]):g} records, "
                    f"the count says {float(counts[at]):g}"
                )

    def check_second(self, sums: Tensor, second: Tensor) -> None:
        """Refuse second moments beyond the clip: their squares add up to at most R^2 for each counted record."""
        if not isinstance(self.clip, L2Clip):
            return
        width = sums.shape[1] - 1
        squares = second if second.shape[1] == width else second[:, diagonal_places(width)]
        count = float((sums[:, 0].clamp_min(0) + self.cut_off).sum())
        stray = NOISE_REACH * self.noise_std * (squares.numel() ** 0.5 + sums.shape[0] ** 0.5)
        allowed = self.clip.radius**2 * (count * (1 + self.rounding) + stray) + stray + self.rounding
        found = float(squares.sum())
        if not found <= allowed:
            raise InputError(f"second moments beyond the clip: {found:g} (at most {allowed:g} for {count:g} records)")
