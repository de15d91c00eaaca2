"""AdamW on one flat tensor for a whole chunk: one fused call a step, every client at an age of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from fedlog.engine.training.tasks import adam_arguments
from fedlog.models.body import Params
from fedlog.settings.training import AdamMoments, Optimiser


class FlatAdam:
    """The moving parameters of a chunk as rows of one (clients, size) tensor, and Adam on a prefix of the rows."""

    def __init__(self, stacked: Params, learning_rate: float, rule: Optimiser) -> None:
        self._arguments = adam_arguments(rule, learning_rate)
        self._shapes = {name: value.shape[1:] for name, value in stacked.items()}
        self._rows = torch.cat([value.flatten(1) for value in stacked.values()], dim=1)
        self._gradients = _workspace("gradients", self._rows)
        lasting = rule.moments is AdamMoments.RUN  # they are handed out
        first, second = (
            torch.empty_like(self._rows) if lasting else _workspace(name, self._rows) for name in ("first", "second")
        )
        self._first, self._second = first.zero_(), second.zero_()
        self._steps = torch.zeros(len(self._rows), dtype=torch.float32, device=self._rows.device)

    def restart(self) -> None:
        """Forget the moments, as an optimiser made anew."""
        self._first.zero_()
        self._second.zero_()
        self._steps.zero_()

    def resume(self, client: int, first: Tensor, second: Tensor, steps: Tensor) -> None:
        """Go on from the moments that `moments` gave of that client."""
        self._first[client], self._second[client], self._steps[client] = first, second, steps

    def moments(self, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """Adam's first and second moments, flat, and the number of steps: views."""
        return self._first[client], self._second[client], self._steps[client]

    def values(self) -> Params:
        """The parameters by name, stacked: views of the rows."""
        return self._views(self._rows)

    def leaves(self, clients: int) -> Params:
        """The parameters of the first clients, ready to be differentiated."""
        return {name: view.detach().requires_grad_(True) for name, view in self._views(self._rows[:clients]).items()}

    def step(self, clients: int, gradients: Sequence[Tensor | None]) -> None:
        """Move the parameters of the first clients; the others and their moments stay as they are."""
        for view, gradient in zip(self._views(self._gradients[:clients]).values(), gradients, strict=True):
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient)
        self._steps[:clients] += 1
        torch._fused_adamw_(
            self._rows[:clients].unbind(),
            self._gradients[:clients].unbind(),
            self._first[:clients].unbind(),
            self._second[:clients].unbind(),
            [],
            self._steps[:clients].unbind(),
            **self._arguments,
        )

    def _views(self, rows: Tensor) -> Params:
        views, start = {}, 0
        for name, shape in self._shapes.items():
            stop = start + prod(shape)
            views[name] = rows[:, start:stop].view(len(rows), *shape)
            start = stop
        return views


_own = threading.local()


def _workspace(name: str, like: Tensor) -> Tensor:
    """A tensor of that shape with any content, kept from chunk to chunk: fresh memory costs a page fault a page."""
    kept: dict[tuple[str, torch.dtype, torch.device], Tensor] = _own.__dict__.setdefault("kept", {})
    key = (name, like.dtype, like.device)
    if key not in kept or kept[key].numel() < like.numel():
        kept[key] = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
    return kept[key][: like.numel()].view(like.shape)
