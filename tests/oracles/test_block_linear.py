"""Linear layers by the compiled passes: against one ordinary module per client, and alike on all instruction sets."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from fedlog.engine.training.block import compile_module, library
from fedlog.engine.training.block.linear import CompiledLinearFunction
from fedlog.engine.training.block.stages import LinearStage

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason="the passes are not compiled here")


def _compare(clients: int, batch: int, units: tuple[int, int], rectify: bool, with_bias: bool) -> None:
    inputs = torch.randn(clients, batch, units[0], dtype=torch.float64, requires_grad=True)
    weight = torch.randn(clients, units[1], units[0], dtype=torch.float64, requires_grad=True)
    bias = torch.randn(clients, units[1], dtype=torch.float64, requires_grad=True) if with_bias else None
    leaves = [inputs, weight, *([] if bias is None else [bias])]
    found = CompiledLinearFunction.apply(inputs, weight, bias, rectify)
    each = [functional.linear(inputs[c], weight[c], None if bias is None else bias[c]) for c in range(clients)]
    expected = torch.stack([one.relu() if rectify else one for one in each])
    gradient = torch.randn_like(found)
    pairs = zip(
        (found, *torch.autograd.grad(found, leaves, gradient)),
        (expected, *torch.autograd.grad(expected, leaves, gradient)),
        strict=True,
    )
    for one, other in pairs:
        assert (one - other).abs().max() <= 1e-12 * (1 + other.abs().max())


sizes = st.tuples(st.integers(1, 70), st.integers(1, 40))


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 3), st.integers(1, 13), sizes, st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_values_and_gradients_agree_with_pytorch(clients, batch, units, rectify, with_bias, seed) -> None:
    torch.manual_seed(seed)
    _compare(clients, batch, units, rectify, with_bias)


@pytest.mark.parametrize("switch", ["convolve_plainly", "convolve_narrowly"])
@pytest.mark.parametrize("units", [(3, 5), (21, 9), (64, 33)])
def test_other_instruction_sets_agree_as_well(switch: str, units: tuple[int, int]) -> None:
    value = ctypes.c_int.in_dll(library.LIBRARY, switch)
    torch.manual_seed(7)
    try:
        value.value = 1
        _compare(2, 10, units, rectify=True, with_bias=True)
    finally:
        value.value = 0


def test_avx2_and_avx512_give_the_same_bits() -> None:
    if library.name_instruction_set() != "AVX-512":
        pytest.skip("this processor has no AVX-512")
    torch.manual_seed(9)
    inputs, weight = torch.randn(3, 10, 84, requires_grad=True), torch.randn(3, 13, 84, requires_grad=True)
    switch = ctypes.c_int.in_dll(library.LIBRARY, "convolve_narrowly")
    found = []
    for switch.value in (0, 1):
        units = CompiledLinearFunction.apply(inputs, weight, None, True)
        found.append((units, *torch.autograd.grad(units.square().sum(), (inputs, weight))))
    switch.value = 0
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_an_infinite_weight_in_two_vectors_is_counted_once() -> None:
    inputs, weight = torch.ones(1, 2, 11), torch.ones(1, 3, 11)
    weight[0, 1, 5] = torch.inf
    assert CompiledLinearFunction.apply(inputs, weight, None, False).tolist() == [[[11.0, torch.inf, 11.0]] * 2]


def test_only_networks_that_are_not_plain_take_the_compiled_passes() -> None:
    plain = compile_module(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), (4,))
    normed = compile_module(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3)), (4,))
    assert plain is not None
    assert normed is not None
    stages = [network.steps[0].stage for network in (plain, normed)]
    assert [isinstance(stage, LinearStage) and stage.compiled for stage in stages] == [False, True]
