"""A softmax head trained on given features; the convex problem is solved by L-BFGS."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedlog.core.heads.gaussian import ABSENT, join_weights_and_bias

STEPS = 200


def fit_logistic(features: Tensor, labels: Tensor, n_class: int, penalty: float) -> Tensor:
    """The head (n_class, 1 + w) that minimises mean cross-entropy + penalty / 2 * |W|^2; the bias has no penalty.

    `features` (n, w), `labels` (n,). The penalty is on the weights W for standardised features; the returned head is
    for the features as they are given. Classes without records are never predicted.
    """
    x, centre, spread = _standardise(features)
    present = torch.bincount(labels, minlength=n_class) > 0
    start = torch.zeros(n_class, 1 + x.shape[1], dtype=torch.float64)
    solved = _minimise_cross_entropy(x, labels, present, start, lambda head: penalty / 2 * head[:, 1:].square().sum())
    slope = solved[:, 1:] / spread
    return join_weights_and_bias(slope, solved[:, 0] - slope @ centre, present)


def fit_logistic_near_head(features: Tensor, labels: Tensor, head: Tensor, penalty: float) -> Tensor:
    """The head W (n_class, 1 + w) that minimises mean cross-entropy + penalty / 2 * |W - head|^2, biases included.

    The penalty is on the difference of the heads for standardised features. A class that `head` never predicts is
    predicted only if `labels` has it.
    """
    x, centre, spread = _standardise(features)
    known = head[:, 0] > ABSENT
    before = torch.where(known[:, None], head.to(torch.float64), 0.0)
    start = torch.cat([before[:, :1] + (before[:, 1:] @ centre)[:, None], before[:, 1:] * spread], dim=1)
    present = known | (torch.bincount(labels, minlength=len(head)) > 0)
    solved = _minimise_cross_entropy(
        x, labels, present, start, lambda moved: penalty / 2 * (moved - start).square().sum()
    )
    slope = solved[:, 1:] / spread
    return join_weights_and_bias(slope, solved[:, 0] - slope @ centre, present)


def _standardise(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The features scaled to mean 0 and std 1, and their mean and std before."""
    x = features.to(torch.float64)
    centre, spread = x.mean(0), x.std(0, correction=0)
    # A spread that is only rounding counts as none: dividing by it would turn the last bits into features.
    spread = torch.where(spread > 1e-12 * x.abs().max().clamp_min(1e-300), spread, 1.0)
    return (x - centre) / spread, centre, spread


def _minimise_cross_entropy(
    x: Tensor, labels: Tensor, present: Tensor, start: Tensor, penalty: Callable[[Tensor], Tensor]
) -> Tensor:
    """The head (n_class, 1 + w) with the lowest mean cross-entropy + penalty, among the classes that are present."""
    w = torch.ones(len(x), dtype=torch.float64) / len(x)
    head = start.clone().requires_grad_(True)
    masked = torch.where(present, 0.0, -1e9).to(torch.float64)
    optimiser = torch.optim.LBFGS(
        [head], max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=1e-7
    )

    def closure() -> Tensor:
        head.grad = None
        logits = x @ head[:, 1:].mT + head[:, 0] + masked
        loss: Tensor = (cross_entropy(logits, labels, reduction="none") * w).sum()
        loss = loss + penalty(head)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return head.detach()
