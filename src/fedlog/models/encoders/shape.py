"""The interface of encoders."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Encoder(Protocol):
    """A frozen function from raw records (n, *input_shape) to features (n, width).

    A record's features must not depend on the other records of a call: record privacy relies on it.
    """

    @property
    def name(self) -> str:
        """The encoder's part of a body's name, without maps and clip."""

    @property
    def width(self) -> int:
        """The number of features."""

    @property
    def digest(self) -> str:
        """64 hex digits, equal for two encoders exactly if weights and preparation are equal."""

    def encode(self, raw: Tensor) -> Tensor:
        """The features of raw records, (n, *input_shape) -> (n, width) float32; pixels are from 0 to 255."""
