"""Convolutions by Winograd's tiles: against one ordinary module per client, and alike on all instruction sets."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from per_client import compare
from torch import Tensor, nn
from torch.nn import functional

from fedlog.engine.training.block import convolve, library
from fedlog.engine.training.block.convolve import ConvShape

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason="the passes are not compiled here")


def _is_tiled(shape: ConvShape, batch: int) -> bool:
    assert library.LIBRARY is not None
    return bool(
        library.LIBRARY.convolve_is_tiled(ctypes.byref(convolve.make_conv_sizes_and_scratch_size(shape, 1, batch)[0]))
    )


@st.composite
def shapes(draw: st.DrawFn) -> ConvShape:
    """Sizes that go by tiles: odd and even, uneven padding, with and without pooling and ReLU."""
    pool = draw(st.sampled_from([1, 1, 2, 3]))
    top, left, bottom, right = (draw(st.integers(0, 2)) for _ in range(4))
    rows, columns = draw(st.integers(6, 11)), draw(st.integers(6, 19))
    channels = draw(st.sampled_from([8, 9, 12, 16])), draw(st.sampled_from([8, 10, 11, 24]))
    sizes = (*channels, rows, columns, 3, 3, pool, pool, draw(st.booleans()))
    return ConvShape(*sizes, pad_top=top, pad_left=left, pad_bottom=bottom, pad_right=right)


def _by_pytorch(shape: ConvShape, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One client's map, the batch innermost."""
    edges = (shape.pad_left, shape.pad_right, shape.pad_top, shape.pad_bottom)
    maps = functional.conv2d(functional.pad(inputs.movedim(-1, 0), edges), weight, bias)
    maps = functional.max_pool2d(maps, shape.pool_rows)
    return (maps.relu() if shape.rectify else maps).movedim(0, -1)


@settings(deadline=None, max_examples=60)
@given(shapes(), st.integers(1, 3), st.sampled_from([1, 2, 7, 8, 10, 33]), st.booleans(), st.integers(0, 2**31))
def test_values_and_gradients_agree_with_pytorch(shape, clients, batch, with_bias, seed) -> None:
    torch.manual_seed(seed)
    rows_in = (clients, shape.channels_in, shape.rows_in, shape.columns_in, batch)
    inputs = torch.randn(rows_in, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(clients, shape.channels_out, shape.channels_in, 3, 3, dtype=torch.float64) / 4
    bias = torch.randn(clients, shape.channels_out, dtype=torch.float64).requires_grad_() if with_bias else None
    leaves = [inputs, weight.requires_grad_(), *([] if bias is None else [bias])]
    found = convolve.convolve_and_pool(shape, inputs, weight, bias)
    each = range(clients)
    expected = torch.stack([_by_pytorch(shape, inputs[c], weight[c], None if bias is None else bias[c]) for c in each])
    gradient = torch.randn_like(found)
    pairs = zip(
        (found, *torch.autograd.grad(found, leaves, gradient)),
        (expected, *torch.autograd.grad(expected, leaves, gradient)),
        strict=True,
    )
    for one, other in pairs:
        assert (one - other).abs().max() <= 1e-12 * (1 + other.abs().max())


def test_the_usual_sizes_go_by_tiles_and_small_ones_by_windows() -> None:
    padding = {"pad_top": 1, "pad_left": 1, "pad_bottom": 1, "pad_right": 1}
    assert _is_tiled(ConvShape(16, 16, 28, 28, 3, 3, **padding), 10)
    assert _is_tiled(ConvShape(8, 64, 7, 7, 3, 3, **padding), 1)
    assert not _is_tiled(ConvShape(3, 16, 28, 28, 3, 3, **padding), 10)
    assert not _is_tiled(ConvShape(16, 16, 28, 28, 3, 3, stride_rows=2, stride_columns=2, **padding), 10)
    assert not _is_tiled(ConvShape(16, 16, 28, 28, 5, 5), 10)
    assert not _is_tiled(ConvShape(16, 16, 3, 3, 3, 3, **padding), 10)


@pytest.mark.parametrize("switch", ["convolve_plainly", "convolve_narrowly"])
@pytest.mark.parametrize("batch", [1, 10])
def test_other_instruction_sets_agree_as_well(switch: str, batch: int) -> None:
    value = ctypes.c_int.in_dll(library.LIBRARY, switch)
    torch.manual_seed(5)
    module = nn.Sequential(
        *(nn.Conv2d(8, 9, 3, padding=1), nn.GroupNorm(3, 9), nn.ReLU(), nn.Conv2d(9, 8, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=2, bias=False), nn.Flatten()),
    )
    try:
        value.value = 1
        compare(module, torch.randn(5, 8, 14, 13, dtype=torch.float64), torch.randint(0, 5, (2, batch)))
    finally:
        value.value = 0


def test_avx2_and_avx512_give_the_same_bits() -> None:
    if library.name_instruction_set() != "AVX-512":
        pytest.skip("this processor has no AVX-512")
    torch.manual_seed(6)
    shape = ConvShape(16, 12, 14, 14, 3, 3, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1)
    assert _is_tiled(shape, 10)
    inputs, weight = torch.randn(3, 16, 14, 14, 10, requires_grad=True), torch.randn(3, 12, 16, 3, 3)
    switch = ctypes.c_int.in_dll(library.LIBRARY, "convolve_narrowly")
    found = []
    for switch.value in (0, 1):
        maps = convolve.convolve_and_pool(shape, inputs, weight.requires_grad_(), None)
        found.append((maps, *torch.autograd.grad(maps.square().sum(), (inputs, weight))))
    switch.value = 0
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
