"""Maximum pooling as maxima of whole blocks, and the way back: the first maximum of a window takes the gradient.

The competitors of a window stand in separate views of equal shape, so both directions are a few passes over contiguous
memory. Columns compete before rows: the order in which PyTorch walks through a window, which decides between equals.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def maxima(competitors: Sequence[Tensor]) -> Tensor:
    """The elementwise maximum; a single competitor is returned as it is."""
    best = competitors[0]
    for at, other in enumerate(competitors[1:]):
        best = torch.maximum(best, other) if at == 0 else torch.maximum(best, other, out=best)
    return best


def route_to_first_maximum(competitors: Sequence[Tensor], gradient: Tensor) -> None:
    """Overwrite the competitors' values with their gradients: that of the maximum for the first to reach it, else 0."""
    if len(competitors) == 2:
        first, second = competitors
        first.ge_(second).mul_(gradient)
        torch.sub(gradient, first, out=second)
        return
    best, left = maxima(competitors), gradient
    for competitor in competitors[:-1]:
        competitor.eq_(best).mul_(left)
        left = left - competitor
    competitors[-1].copy_(left)
