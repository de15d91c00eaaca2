"""Chains of stages against the same stages one by one: values, and the gradients of values and parameters."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedlog.engine.training.block import compile_module, library
from fedlog.engine.training.block.chain import ChainStage, Program, UnitSizes
from fedlog.engine.training.block.network import BlockNetwork
from fedlog.models.masked_dropout import MaskedDropout, collect_parameters

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason="the passes are not compiled here")


class Residual(nn.Module):
    """A block with a shortcut that needs no layer, and one with a convolution, pooled and flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.second, self.second_norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.GroupNorm(4, 8)
        self.third, self.short = nn.Conv2d(8, 6, 3, 2, padding=1), nn.Conv2d(8, 6, 1, 2)
        self.pool, self.flat = nn.AvgPool2d(2), nn.Flatten()
        self.last, self.last_norm = nn.Linear(24, 5), nn.LayerNorm(5)

    def forward(self, inputs: Tensor) -> Tensor:
        maps = torch.relu(self.first_norm(self.first(inputs)))
        maps = torch.relu(self.second_norm(self.second(maps)) + maps)
        maps = self.third(maps) + self.short(maps)
        return self.last_norm(torch.relu(self.last(self.flat(self.pool(maps)))))


def _network(module: nn.Module, shape: tuple[int, ...]) -> BlockNetwork:
    network = compile_module(module, shape)
    assert network is not None
    assert any(isinstance(step.stage, ChainStage) for step in network.chained)
    return network


def _values_and_gradients(network: BlockNetwork, params: dict[str, Tensor], inputs: Tensor) -> list[Tensor]:
    leaves = [inputs, *(value for value in params.values() if value.requires_grad)]
    found = network.compute_features(params, inputs, None)
    torch.manual_seed(9)
    return [found, *torch.autograd.grad(found, leaves, torch.randn_like(found))]


@pytest.mark.parametrize("batch", [1, 5, 16])
@pytest.mark.parametrize("frozen", ["", "second", "first", "short"])
def test_a_chain_agrees_with_its_stages(batch: int, frozen: str) -> None:
    torch.manual_seed(1)
    module = Residual()
    network = _network(module, (2, 9, 8))
    assert len(network.chained) == 1
    params = {n: torch.randn(3, *v.shape, dtype=torch.float64) for n, v in collect_parameters(module).items()}
    params["second.weight"] = params["second.weight"][:1]  # shared by all clients
    for name, value in params.items():
        value.requires_grad_(not frozen or not name.startswith(frozen))
    inputs = torch.randn(3, 2, 9, 8, batch, dtype=torch.float64, requires_grad=True)
    chained, single = (_values_and_gradients(one, params, inputs) for one in (network, replace(network, chained=())))
    for one, other in zip(chained, single, strict=True):
        assert (one - other).abs().max() <= 1e-12 * (1 + other.abs().max())
    with torch.no_grad():  # values are written over each other
        assert (network.compute_features(params, inputs, None) - single[0]).abs().max() <= 1e-12 * (
            1 + single[0].abs().max()
        )


def test_a_value_that_is_read_outside_leaves_the_chain() -> None:
    torch.manual_seed(2)
    drop = MaskedDropout(0.5, per_channel=True)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), drop, nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)
    )
    network = _network(nn.Sequential(module, nn.Flatten()), (1, 6, 6))
    assert [isinstance(step.stage, ChainStage) for step in network.chained] == [True, False, True]


def test_temporary_values_that_are_needed_together_lie_apart() -> None:
    program = Program(torch.float64, keeps=False)
    first, second, third = (program.reserve_temporary(40) for _ in range(3))
    sizes = UnitSizes()
    program.add_call("sum_forward", sizes, first, None, second)
    program.add_call("sum_forward", sizes, second, None, third)
    program._place_temporaries()
    assert second.offset >= 40
    assert third.offset == first.offset == 0


@pytest.mark.parametrize("switch", ["", "convolve_plainly", "convolve_narrowly"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gelu_and_its_gradient_agree_with_pytorch(dtype: torch.dtype, switch: str) -> None:
    network = _network(nn.Sequential(nn.Linear(3, 3), nn.GELU()), (3,))
    values = torch.linspace(-40, 40, 3 * 4001, dtype=dtype).view(1, -1, 3).requires_grad_()
    params = {"0.weight": torch.eye(3, dtype=dtype)[None], "0.bias": torch.zeros(1, 3, dtype=dtype)}
    flag = ctypes.c_int.in_dll(library.LIBRARY, switch or "convolve_plainly")
    flag.value = bool(switch)
    try:
        chained, single = (
            _values_and_gradients(one, params, values) for one in (network, replace(network, chained=()))
        )
    finally:
        flag.value = 0
    for one, other in zip(chained, single, strict=True):
        assert (one - other).abs().max() <= (1e-12 if dtype == torch.float64 else 1e-5) * (1 + other.abs().max())
