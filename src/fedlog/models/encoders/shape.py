"""An encoder: a fixed function from raw records to features, with a digest that sites can compare."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Encoder(Protocol):
    """A frozen function from raw records (n, *input_shape) to features (n, width).

    A record's features do not depend on the other records of a call: that is what record privacy rests on.
    """

    @property
    def name(self) -> str:
        """As in a body's name, without maps and clip."""

    @property
    def width(self) -> int:
        """The number of features."""

    @property
    def digest(self) -> str:
        """64 hex digits: the same for two encoders exactly when weights and preparation are the same."""

    def encode(self, raw: Tensor) -> Tensor:
        """(n, *input_shape) -> (n, width) float32; pixels as 0 to 255."""
