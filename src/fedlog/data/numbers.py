"""Scale numbers to predict so that the range on which all sites agree becomes -1 to 1, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Range = tuple[float, float]


def half_width(number: Range) -> float:
    """Half the width of the range: the factor between a scaled number and the number."""
    return (number[1] - number[0]) / 2


def scale_targets(values: NDArray[Any], number: Range) -> NDArray[np.float32]:
    """The numbers, scaled so that the range becomes -1 to 1."""
    scaled = (values.astype(np.float64) - sum(number) / 2) / half_width(number)
    return scaled.astype(np.float32)


def unscale_targets(scaled: NDArray[Any], number: Range) -> NDArray[np.float64]:
    """The numbers in their original units, from scaled ones."""
    own: NDArray[np.float64] = scaled.astype(np.float64) * half_width(number) + sum(number) / 2
    return own
