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
    """Whether `vmap` can run this body: no running statistics, records that do not see each other, and a trial.

    In the trial two clients must give what the loop gives.
    """
    single = dict(body.training.named_parameters())
    inputs = torch.randn(2, 3, *body.input_shape, generator=torch.Generator().manual_seed(0))
    if body.buffers or _mixes_records(body, single, inputs):
        return False
    params = {name: torch.stack([value, value]) for name, value in single.items()}
    try:
        found = VmapNetwork(body).features(params, inputs, None)
    except (RuntimeError, ValueError):
        return False
    return bool(torch.allclose(found[1], body.features(single, inputs[1], None), atol=1e-5))


def _mixes_records(body: Body, params: Mapping[str, Tensor], inputs: Tensor) -> bool:
    """Whether a record's features in training depend on the others of its batch, some of which would be padding."""
    one, other = inputs
    found, changed = (body.features(params, batch, {}) for batch in (one, torch.cat([one[:1], other[1:]])))
    return not torch.allclose(found[0], changed[0], rtol=1e-4, atol=1e-5)
