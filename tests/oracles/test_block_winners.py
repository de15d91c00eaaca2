"""Gradients by lists of winners (`convolve_winners.h`) against the windows of AVX2, to the bit."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

from fedlog.engine.training.block import convolve, library
from fedlog.engine.training.block.convolve import ConvShape, convolve_and_pool

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason="the passes are not compiled")

SHAPES = {
    "MNIST, second layer": ConvShape(10, 20, 12, 12, 5, 5, 2, 2, rectify=True),
    "CIFAR, first layer": ConvShape(3, 6, 32, 32, 5, 5, 2, 2, rectify=True),
    "CIFAR, second layer": ConvShape(6, 16, 14, 14, 5, 5, 2, 2, rectify=True),
    "odd sizes, no ReLU": ConvShape(4, 7, 11, 13, 3, 5, 2, 2),
    "few channels out of 3 x 3": ConvShape(6, 3, 9, 10, 3, 3, 2, 2, rectify=True),
    "signals, first layer": ConvShape(9, 16, 1, 128, 1, 9, 1, 2, rectify=True),
    "signals, second layer": ConvShape(16, 32, 1, 60, 1, 9, 1, 4, rectify=True),
    "signals in rows, no ReLU": ConvShape(4, 5, 3, 27, 1, 4, 1, 2),
}
BATCHES = (2, 10, 16, 18, 50)


def _gradients(shape: ConvShape, inputs: Tensor, weight: Tensor, bias: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
    leaves = [leaf.detach().requires_grad_() for leaf in (inputs, weight, bias)]
    pooled = convolve_and_pool(shape, *leaves) * kept
    return torch.autograd.grad(pooled.square().sum(), leaves)


def _is_listed(shape: ConvShape, batch: int) -> bool:
    return bool(
        library.LIBRARY.convolve_is_listed(ctypes.byref(convolve.make_conv_sizes_and_scratch_size(shape, 2, batch)[0]))
    )


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", SHAPES)
def test_lists_and_windows_give_the_same_bits(name: str, batch: int) -> None:
    if library.name_instruction_set() != "AVX-512":
        pytest.skip("this processor has no AVX-512")
    torch.manual_seed(1)
    shape = SHAPES[name]
    inputs = torch.randn(2, shape.channels_in, shape.rows_in, shape.columns_in, batch).clamp_min(-0.5)
    weight = torch.randn(2, shape.channels_out, shape.channels_in, shape.kernel_rows, shape.kernel_columns)
    bias = torch.randn(2, shape.channels_out)
    kept = 2.0 * (torch.rand(2, shape.channels_out, 1, 1, batch) < 0.5)  # dropout by channel makes whole maps zero
    assert _is_listed(shape, batch)
    switch = ctypes.c_int.in_dll(library.LIBRARY, "convolve_narrowly")
    lists = _gradients(shape, inputs, weight, bias, kept)
    try:
        switch.value = 1
        windows = _gradients(shape, inputs, weight, bias, kept)
    finally:
        switch.value = 0
    assert all(torch.equal(one, other) and one.abs().sum() > 0 for one, other in zip(lists, windows, strict=True))


def test_sums_with_another_rounding_behind_whole_vectors_go_by_windows() -> None:
    """Ten columns of odd batches leave two numbers a row, which windows round in another way than four."""
    assert not _is_listed(SHAPES["CIFAR, second layer"], 7)
    assert not _is_listed(ConvShape(1, 10, 28, 28, 5, 5, 2, 2, rectify=True), 10)


def test_a_gradient_that_is_not_a_number_is_not_skipped() -> None:
    shape = SHAPES["CIFAR, second layer"]
    inputs, weight = torch.randn(1, 6, 14, 14, 10, requires_grad=True), torch.randn(1, 16, 6, 5, 5, requires_grad=True)
    pooled = convolve_and_pool(shape, inputs, weight, None)
    gradient = torch.zeros_like(pooled)
    gradient[0, 3] = torch.nan
    of_inputs, of_weight = torch.autograd.grad(pooled, (inputs, weight), gradient)
    assert of_inputs.isnan().any()
    assert of_weight[0, 3].isnan().all()
    assert not of_weight[0, 4].isnan().any()
