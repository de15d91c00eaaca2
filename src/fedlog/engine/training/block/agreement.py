"""Compare stacked clients with each client's own module on made-up records: features, and gradients of parameters.

It finds what neither tracing nor `vmap` sees: side effects, `torch.no_grad`, hooks, and backward passes that the body
defines itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}  # of gradients, as a share of the largest one
Values = Mapping[str, Tensor]
Compute = Callable[[Values, Tensor], Tensor]
"""From parameters and records (records, *shape) to features (records, width); stacked: (clients, records, width)."""


def have_same_features(alone: Compute, stacked: Compute, clients: Sequence[Values], records: Tensor) -> bool:
    """Whether stacked clients have the features of each client alone, up to rounding."""
    with torch.no_grad():
        found = stacked(_stack(clients), records)
        expected = torch.stack([alone(own, records) for own in clients])
    scale = 1 + expected.abs().nan_to_num(0).max().item()
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


def have_same_gradients(
    alone: Compute, stacked: Compute, clients: Sequence[Values], trained: Sequence[str], records: Tensor
) -> bool:
    """Whether stacked clients have the gradients of the parameters `trained` that each client has alone.

    Gradients are compared in float64, so that rounding is not taken for a difference; in float32 if the body takes no
    float64.
    """
    if not trained:
        return True
    for dtype, tolerance in TOLERANCES.items():
        each, inputs = [_convert_floats(own, dtype) for own in clients], records.to(dtype)
        try:
            own_gradients = [_compute_gradients(alone, own, trained, inputs) for own in each]
        except (RuntimeError, ValueError):
            continue
        found = _compute_gradients(stacked, _stack(each), trained, inputs)
        expected = {name: torch.stack([own[name] for own in own_gradients]) for name in trained}
        return all(_are_close(found[name], expected[name], tolerance) for name in trained)
    return False


def _compute_gradients(compute: Compute, params: Values, trained: Sequence[str], records: Tensor) -> dict[str, Tensor]:
    """The gradients of a sum of all features with made-up weights; zeros for parameters that it does not depend on."""
    leaves = {name: params[name].detach().clone().requires_grad_() for name in trained}
    with torch.enable_grad():
        features = compute({**params, **leaves}, records)
        weights = torch.randn(features.shape[-2:], generator=torch.Generator().manual_seed(0)).to(features)
        total = (features * weights).sum()
    if not total.requires_grad:
        return {name: torch.zeros_like(value) for name, value in leaves.items()}
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaves[name]) if gradient is None else gradient
        for name, gradient in zip(trained, found, strict=True)
    }


def _are_close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    scale = expected.abs().nan_to_num(0, 0, 0).max().item() if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * scale + 1e-12, equal_nan=True)


def _convert_floats(values: Values, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in values.items()}


def _stack(clients: Sequence[Values]) -> dict[str, Tensor]:
    return {name: torch.stack([own[name] for own in clients]) for name in clients[0]}
