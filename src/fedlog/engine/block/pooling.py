"""Maximum pooling as maxima of whole blocks, and the way back: the first maximum of a window takes the gradient.

The competitors of a window stand in separate views of equal shape, so both directions are a few passes over contiguous
memory. Columns compete before rows: the order in which PyTorch walks through a window, which decides between equals.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def maxima_into(best: Tensor, competitors: Sequence[Tensor]) -> None:
    """Fill `best` with the elementwise maximum; it may be a single competitor itself."""
    first, *others = competitors
    if not others:
        if best is not first:
            best.copy_(first)
        return
    torch.maximum(first, others[0], out=best)
    for other in others[1:]:
        torch.maximum(best, other, out=best)


def route_to_first_maximum(competitors: Sequence[Tensor], gradient: Tensor) -> None:
    """Overwrite the competitors' values with their gradients: that of the maximum for the first to reach it, else 0.

    A single competitor may be the gradient itself, which then stays.
    """
    if len(competitors) == 1:
        if competitors[0] is not gradient:
            competitors[0].copy_(gradient)
        return
    if len(competitors) == 2:
        first, second = competitors
        first.ge_(second).mul_(gradient)
        torch.sub(gradient, first, out=second)
        return
    best, left = torch.empty_like(gradient), gradient
    maxima_into(best, competitors)
    for competitor in competitors[:-1]:
        competitor.eq_(best).mul_(left)
        left = left - competitor
    competitors[-1].copy_(left)
