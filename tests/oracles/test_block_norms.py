"""Norms with the pooling and ReLU behind them, in one pass: against one ordinary module per client."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from per_client import compare
from torch import nn

from fedlog.engine.training.block import compile_module, library
from fedlog.engine.training.block.map_stages import MapNormStage

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason="the passes are not compiled here")


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """A norm with pooling and ReLU in any order behind it, on maps or signals; and the shape of a record."""
    flat, groups = draw(st.booleans()), draw(st.integers(1, 3))
    shape = (groups * draw(st.integers(1, 3)), *(draw(st.integers(4, 11)) for _ in range(1 if flat else 2)))
    sizes = [draw(st.integers(1, 3)) for _ in shape[1:]]
    pool = nn.MaxPool1d(sizes[0]) if flat else nn.MaxPool2d((sizes[0], sizes[1]))
    behind = draw(st.permutations([pool, nn.ReLU()]))[: draw(st.integers(1, 2))]
    first = (nn.Conv1d if flat else nn.Conv2d)(shape[0], shape[0], 3, padding=1)
    norm = nn.GroupNorm(groups, shape[0], affine=draw(st.booleans()))
    return nn.Sequential(first, norm, *behind, nn.Flatten()), shape


@settings(deadline=None, max_examples=60)
@given(networks(), st.integers(1, 3), st.sampled_from([1, 2, 7, 8, 10, 50]), st.integers(0, 2**31))
def test_values_and_gradients_agree_with_one_module_per_client(drawn, clients, batch, seed) -> None:
    module, shape = drawn
    torch.manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.normal_()  # factors of both signs: a negative one turns the maximum over
    compare(module, torch.randn(7, *shape, dtype=torch.float64), torch.randint(0, 7, (clients, batch)))


@pytest.mark.parametrize("switch", ["convolve_plainly", "convolve_narrowly"])
@pytest.mark.parametrize("batch", [3, 10])
def test_other_instruction_sets_agree_as_well(switch: str, batch: int) -> None:
    value = ctypes.c_int.in_dll(library.LIBRARY, switch)
    torch.manual_seed(8)
    module = nn.Sequential(nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    try:
        value.value = 1
        compare(module, torch.randn(5, 1, 13, 12, dtype=torch.float64), torch.randint(0, 5, (2, batch)))
    finally:
        value.value = 0


def test_pooling_with_gaps_or_padding_stays_a_stage_of_its_own() -> None:
    for pool in (nn.MaxPool2d(2, stride=3), nn.MaxPool2d(3, padding=1), nn.MaxPool2d(2, ceil_mode=True)):
        network = compile_module(nn.Sequential(nn.GroupNorm(1, 2), nn.ReLU(), pool, nn.Flatten()), (2, 7, 7))
        assert network is not None
        assert len(network.steps) == 3
    fused = compile_module(nn.Sequential(nn.GroupNorm(1, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), (2, 7, 7))
    assert fused is not None
    (stage, *_) = (step.stage for step in fused.steps)
    assert isinstance(stage, MapNormStage)
    assert len(fused.steps) == 2
