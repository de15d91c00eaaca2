"""A stacked network against one ordinary module per client: features and gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedlog.engine.training.block import compile_module
from fedlog.models.masked_dropout import MaskedLayer, collect_parameters

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def draw_masks(module: nn.Module, input_shape: tuple[int, ...], clients: int, batch: int, dtype: torch.dtype):
    """Random multipliers (clients, batch, channels or units or *shape) for each dropout layer of the module."""
    masks: dict[str, Tensor] = {}

    def draw(name: str) -> Callable[..., None]:
        def note(layer: MaskedLayer, inputs: tuple[Tensor, ...]) -> None:
            shape = inputs[0].shape[1:2] if layer.per_channel else inputs[0].shape[1:]
            keep = torch.rand(clients, batch, *shape) >= layer.p
            masks[name] = keep.to(dtype) / (1 - layer.p)

        return note

    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, MaskedLayer)]
    hooks = [layer.register_forward_pre_hook(draw(name)) for name, layer in layers]
    with torch.no_grad():
        module(torch.rand(2, *input_shape))
    for hook in hooks:
        hook.remove()
    return masks


def compare(
    module: nn.Module,
    images: Tensor,
    positions: Tensor,
    *,
    frozen: frozenset[str] = frozenset(),
    with_masks: bool = True,
    draw: Callable[..., Tensor] = torch.randn,
    without_block: tuple[str, ...] = (),
) -> None:
    """Assert that the stacked network and the per-client loop agree on features and gradients."""
    dtype, (clients, batch) = images.dtype, positions.shape
    shape = tuple(images.shape[1:])
    network = compile_module(module, shape)
    assert network is not None
    assert network.without_block == without_block
    params = {n: draw(clients, *value.shape, dtype=dtype) * 0.25 for n, value in collect_parameters(module).items()}
    for name, value in params.items():
        if name.endswith("running_var"):
            value.square_().add_(0.1)
        else:
            value.requires_grad_(name not in frozen and "running" not in name)
    masks = draw_masks(module, shape, clients, batch, dtype) if with_masks else None
    moving = [value for value in params.values() if value.requires_grad]

    def one_client(at: int) -> Tensor:
        own = {name: value[at] for name, value in params.items()}
        own |= {f"{name}.mask": mask[at] for name, mask in (masks or {}).items()}
        return torch.func.functional_call(module, own, (images[positions[at]],))

    expected = torch.stack([one_client(at) for at in range(clients)])
    weights = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad((expected * weights).sum(), moving, allow_unused=True)
    found = network.compute_features(params, network.gather(network.arrange(images), positions), masks)
    gradients = torch.autograd.grad((found * weights).sum(), moving, allow_unused=True)

    scale = TOLERANCE[dtype]
    torch.testing.assert_close(found, expected, rtol=scale, atol=scale * (1 + expected.abs().max().item()))
    for one, other in zip(gradients, expected_gradients, strict=True):
        if one is None or other is None:
            assert (one if other is None else other) is None or not (one if other is None else other).any()
            continue
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=scale, atol=scale * (1 + other.abs().max().item()))
