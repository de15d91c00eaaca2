"""Losses that add a term to cross-entropy. They sum over the batch axis only, so axes before it may be clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedlog.algorithms.interface import Batch, Carry, cross_entropy


def _squared_distances(features: Tensor, means: Tensor, present: Tensor) -> Tensor:
    """The squared distances (..., B, n_class) of features from class means; 0 for a class without a mean."""
    # |a|^2 - 2 a.b + |b|^2 instead of |a - b|^2, which would need a (..., B, n_class, width) tensor.
    squares = features.square().sum(-1, keepdim=True) - 2 * features @ means.mT + means.square().sum(-1)[..., None, :]
    return squares * present[..., None, :].to(means.dtype)


class ComparedFeatures(StrEnum):
    """Which features FedLog-C compares with the class means."""

    BEFORE_DROPOUT = "before-dropout"
    AFTER_DROPOUT = "after-dropout"
    """The features that the head sees, as in the paper's formula."""


@dataclass(frozen=True)
class ClassMeansLoss:
    """Cross-entropy + alpha * (squared distance to the own class's mean) - beta * (squared distances to other means).

    FedLog-C's loss: the paper's eq. 12, averaged over the batch. Constants: `means` (..., n_class, width) and `present`
    (..., n_class). A class without a mean is in neither term. Means further away than the `margin` do not push.
    docs/deviations.md explains the margin, and why features before the dropout are compared with the means.
    """

    alpha: float
    beta: float
    margin: float | None
    compared: ComparedFeatures = ComparedFeatures.BEFORE_DROPOUT

    def __call__(self, batch: Batch, constants: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        entropy, carry = cross_entropy(batch, constants, carry)
        after_dropout = batch.after_dropout if self.compared is ComparedFeatures.AFTER_DROPOUT else None
        features = batch.features if after_dropout is None else after_dropout
        squares = _squared_distances(features, constants["means"], constants["present"])
        own = squares.gather(-1, batch.labels[..., None])[..., 0]
        pushing = squares if self.margin is None else squares.clamp(max=self.margin**2)
        own_push = pushing.gather(-1, batch.labels[..., None])[..., 0]
        cluster = self.alpha * own - self.beta * (pushing.sum(-1) - own_push)
        return entropy + (cluster * batch.weights).sum(-1), carry


@dataclass(frozen=True)
class NearPrototypeLoss:
    """Cross-entropy, plus `regularisation` times the mean squared distance to the prototype of the record's class.

    FedProto's loss: the mean is over the batch and over the width of the features. Constants: `means` (..., n_class,
    width) and `present` (..., n_class). A record whose class has no prototype counts as distance 0.
    """

    regularisation: float

    def __call__(self, batch: Batch, constants: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        entropy, carry = cross_entropy(batch, constants, carry)
        squares = _squared_distances(batch.features, constants["means"], constants["present"])
        own = squares.gather(-1, batch.labels[..., None])[..., 0] / batch.features.shape[-1]
        return entropy + self.regularisation * (own * batch.weights).sum(-1), carry


@dataclass(frozen=True)
class NearModelLoss:
    """Cross-entropy, plus `strength` / 2 times the squared distance of the parameters from given parameters.

    The proximal term of FedProx (its mu is `strength`) and of Ditto (its lambda). Constants: the given parameters, by
    name.
    """

    strength: float

    reads_params = True

    def __call__(self, batch: Batch, constants: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        entropy, carry = cross_entropy(batch, constants, carry)
        clients = batch.labels.shape[:-1]
        squares = [(batch.params[name] - near).square().reshape(*clients, -1) for name, near in constants.items()]
        return entropy + self.strength / 2 * torch.cat(squares, -1).sum(-1), carry


@dataclass(frozen=True)
class NearGlobalMeanLoss:
    """Cross-entropy, plus kappa / 2 times the mean squared difference of the running mean feature from the global mean.

    FedDBE's loss. Constant: the global mean, `mean` (..., width). Passed on from batch to batch (`carry`): the running
    mean, `running` (..., width), in which each new batch has the share `momentum`. The gradient flows through the
    current batch only.
    """

    kappa: float
    momentum: float

    def __call__(self, batch: Batch, constants: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        entropy, _ = cross_entropy(batch, constants, carry)
        before = carry["running"]
        here = (batch.features * batch.weights[..., None]).sum(-2)
        after = (1 - self.momentum) * before + self.momentum * here
        # In a block, small clients get batches that are all padding; these must not pull the running mean to zero.
        running = torch.where(batch.weights.sum(-1, keepdim=True) > 0, after, before)
        distance = 0.5 * (running - constants["mean"]).square().mean(-1)
        return entropy + self.kappa * distance, {"running": running}
