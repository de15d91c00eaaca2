"""A softmax head trained on features that were drawn, or that a site holds: the convex problem, solved by L-BFGS."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedlog.core.heads.gaussian import with_bias

STEPS = 200


def fit_logistic(features: Tensor, labels: Tensor, n_class: int, penalty: float) -> Tensor:
    """(n_class, 1 + w): minimises mean cross-entropy + penalty / 2 * |W|^2, the bias free; absent classes never win.

    `features` (n, w), `labels` (n,). Features are standardised inside, and the penalty is on the standardised ones.
    """
    x = features.to(torch.float64)
    centre, spread = x.mean(0), x.std(0, correction=0)
    # A spread at rounding level is no spread: dividing by it would make features of the last bits.
    spread = torch.where(spread > 1e-12 * x.abs().max().clamp_min(1e-300), spread, 1.0)
    x = (x - centre) / spread
    w = torch.ones(len(x), dtype=torch.float64) / len(x)
    present = torch.bincount(labels, minlength=n_class) > 0
    head = torch.zeros(n_class, 1 + x.shape[1], dtype=torch.float64, requires_grad=True)
    masked = torch.where(present, 0.0, -1e9).to(torch.float64)
    optimiser = torch.optim.LBFGS(
        [head], max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=1e-7
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        logits = x @ head[:, 1:].mT + head[:, 0] + masked
        loss: Tensor = (cross_entropy(logits, labels, reduction="none") * w).sum()
        loss = loss + penalty / 2 * head[:, 1:].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    solved = head.detach()
    slope = solved[:, 1:] / spread
    return with_bias(slope, solved[:, 0] - slope @ centre, present)
