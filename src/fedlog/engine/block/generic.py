"""Any stackable module as a stacked network, through `vmap`: slower than the blocks, faster than the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.models.body import Body


@dataclass(frozen=True, eq=False)
class VmapNetwork:
    """A body whose forward pass is mapped over the clients' axis."""

    body: Body

    def arrange(self, images: Tensor) -> Tensor:
        """The inputs as they are."""
        return images

    def gather(self, arranged: Tensor, positions: Tensor) -> Tensor:
        """(clients, batch, *input_shape)."""
        return arranged[positions]

    def features(self, params: Mapping[str, Tensor], batch: Tensor, masks: Mapping[str, Tensor] | None) -> Tensor:
        """(clients, batch, width)."""
        own = {name: params[name] for layer in self.body.layers for name in layer}
        if masks is None:
            found: Tensor = torch.func.vmap(lambda p, x: self.body.features(p, x, None))(own, batch)
        else:
            found = torch.func.vmap(self.body.features)(own, batch, dict(masks))
        return found


def stackable(body: Body) -> bool:
    """Whether `vmap` can run this body: no running statistics, and a trial of two clients gives what the loop gives."""
    if body.buffers:
        return False
    inputs = torch.zeros(2, 2, *body.input_shape)
    params = {name: torch.stack([value, value]) for name, value in body.training.named_parameters()}
    try:
        found = VmapNetwork(body).features(params, inputs, None)
    except (RuntimeError, ValueError):
        return False
    single = {name: value[0] for name, value in params.items()}
    return bool(torch.allclose(found[1], body.features(single, inputs[1], None), atol=1e-5))
