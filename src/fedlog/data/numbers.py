"""A number to be predicted, in the units in which it is summed: the range on which all sites agree is -1 to 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Range = tuple[float, float]


def half_width(number: Range) -> float:
    """Half the width of the range, by which the number is divided so that its range becomes -1 to 1."""
    return (number[1] - number[0]) / 2


def scale_targets(values: NDArray[Any], number: Range) -> NDArray[np.float32]:
    """The numbers in units in which the agreed range is -1 to 1."""
    scaled = (values.astype(np.float64) - sum(number) / 2) / half_width(number)
    return scaled.astype(np.float32)


def unscale_targets(scaled: NDArray[Any], number: Range) -> NDArray[np.float64]:
    """The numbers in their own units again."""
    own: NDArray[np.float64] = scaled.astype(np.float64) * half_width(number) + sum(number) / 2
    return own
