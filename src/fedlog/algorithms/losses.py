"""The losses of all methods: weighted sums over the batch axis, so that leading axes can be clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlog.algorithms.shape import Batch, Carry


def cross_entropy(batch: Batch, constants: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
    """The mean of -ln softmax(logits)[label] over the batch (the paper's eq. 10, divided by the batch size)."""
    chosen = batch.logits.gather(-1, batch.labels[..., None])[..., 0]  # (..., B)
    return ((torch.logsumexp(batch.logits, -1) - chosen) * batch.weights).sum(-1), carry


@dataclass(frozen=True)
class Clustered:
    """Cross-entropy, plus alpha times the squared distance to the own class mean, minus beta times that to the others.

    FedLog-C's eq. 12, read as a distance between features and class means and averaged over the batch. Constants:
    `means` (..., n_class, width) and `present` (..., n_class). A class without a mean is in neither term. With a
    `margin`, a class mean further away than it no longer pushes: the one deviation we offer (see docs/deviations.md).
    """

    alpha: float
    beta: float
    margin: float | None

    def __call__(self, batch: Batch, constants: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        """The loss of each client, (...,)."""
        entropy, carry = cross_entropy(batch, constants, carry)
        means, present = constants["means"], constants["present"]
        # |phi - mean|^2 expanded, so that no (..., B, n_class, width) tensor is made.
        squares = (
            batch.features.square().sum(-1, keepdim=True)
            - 2 * batch.features @ means.mT
            + means.square().sum(-1)[..., None, :]
        ) * present[..., None, :].to(means.dtype)  # (..., B, n_class)
        own = squares.gather(-1, batch.labels[..., None])[..., 0]
        pushing = squares if self.margin is None else squares.clamp(max=self.margin**2)
        own_push = pushing.gather(-1, batch.labels[..., None])[..., 0]
        cluster = self.alpha * own - self.beta * (pushing.sum(-1) - own_push)
        return entropy + (cluster * batch.weights).sum(-1), carry
