"""Stacked clients with any module through `vmap`: slower than the blocks, faster than the loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlog.engine.training.block.agreement import have_same_gradients
from fedlog.models.body import Body
from fedlog.models.masked_dropout import collect_parameters
from fedlog.models.module_checks import make_trial_records


@dataclass(frozen=True, eq=False)
class VmapNetwork:
    """A body for stacked clients: `vmap` runs its forward pass over the axis of clients."""

    body: Body
    takes_maps = False  # the batch is the second axis, not the last

    def compute_batch_shape(self, clients: int, batch: int) -> tuple[int, ...]:
        """The shape of a stacked batch."""
        return (clients, batch, *self.body.input_shape)

    def arrange(self, images: Tensor) -> Tensor:
        """Return the inputs unchanged: `vmap` needs no special layout."""
        return images

    def gather(self, arranged: Tensor, positions: Tensor) -> Tensor:
        """The batch (clients, batch, *input_shape) of the records at these positions."""
        return arranged[positions]

    def compute_features(
        self, params: Mapping[str, Tensor], batch: Tensor, masks: Mapping[str, Tensor] | None
    ) -> Tensor:
        """The features (clients, batch, width)."""
        own = {name: params[name] for layer in self.body.layers for name in layer}
        if masks is None:
            found: Tensor = call_stacked(lambda p, x: self.body.compute_features(p, x, None), own, batch)
        else:
            found = call_stacked(self.body.compute_features, own, batch, dict(masks))
        return found


def call_stacked(function: Callable[..., Any], *stacked: Any) -> Any:
    """Call a function for all clients by `vmap`.

    The warning of `vmap` that an operation is slow is not shown, because a speed trial measures whether `vmap` is slow.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        return torch.func.vmap(function)(*stacked)


def find_vmap_obstacle(body: Body) -> str | None:
    """Why clients with this body cannot be stacked through `vmap`; None if a trial with two clients succeeded."""
    single = {name: value.detach().clone() for name, value in collect_parameters(body.training_module).items()}
    params = {name: torch.stack([value, value]) for name, value in single.items()}
    inputs = make_trial_records(body.input_shape, 2)
    modes: tuple[Mapping[str, Tensor] | None, ...] = (None, {})  # evaluation, and training, which may compute more
    for masks in modes:
        try:
            found = VmapNetwork(body).compute_features(params, torch.stack([inputs, inputs]), masks)
        except (RuntimeError, ValueError):
            return "vmap cannot run it"
        if not torch.allclose(found[1], body.compute_features(single, inputs, masks), atol=1e-5, equal_nan=True):
            return "vmap gives another result than the loop"
    moving = [name for name, _ in body.training_module.named_parameters() if name not in body.untrained_params]
    try:
        same = have_same_gradients(
            lambda own, records: body.compute_features(own, records, {}),
            lambda stacked, records: VmapNetwork(body).compute_features(stacked, torch.stack([records, records]), {}),
            [single, single],
            moving,
            inputs,
        )
    except (RuntimeError, ValueError):
        return "vmap cannot run its backward pass"
    return None if same else "vmap gives other gradients than the loop"
