"""Batches looked up pixel by pixel against the plain transform, bit by bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.data.transforms import Augmentation, Transform
from fedlog.engine.training.block.pixels import gather_batch_innermost, make_pixel_pool


def _in_layout(records: torch.Tensor, clients: int, batch: int, innermost: bool) -> torch.Tensor:
    stacked = records.view(clients, batch, *records.shape[1:])
    return stacked.movedim(1, -1).contiguous() if innermost else stacked


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4, 15, 16, 19, 33]),
    st.integers(1, 9),
    st.one_of(st.integers(1, 9), st.integers(15, 33), st.integers(63, 65)),  # 16 to 64 columns go by vectors
    st.integers(0, 11),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**31),
)
def test_crops_are_those_of_the_plain_transform_bit_by_bit(
    channels, clients, batch, height, width, padding, innermost, dtype, seed
) -> None:
    """Offsets larger than the image too: a crop may lie in the black frame as a whole."""
    torch.manual_seed(seed)
    raw = torch.randint(0, 256, (6, channels, height, width), dtype=torch.uint8)
    transform = Transform((0.3, 0.4, 0.5)[:channels], (0.7,) * channels, crop_padding=padding, flip=True)
    positions = torch.randint(0, 6, (clients, batch))
    crops = torch.randint(0, 2 * padding + 1, (3, clients, batch))
    crops[2] %= 2
    pixels = make_pixel_pool(raw, transform, dtype)
    assert pixels is not None
    plain = transform.augment(
        raw[positions.flatten()], Augmentation(crops[0].flatten(), crops[1].flatten(), crops[2].flatten().bool())
    )
    expected = _in_layout(plain.to(dtype), clients, batch, innermost)
    assert torch.equal(pixels.gather(positions, crops, tuple(expected.shape), innermost), expected)


@pytest.mark.parametrize("innermost", [True, False])
@pytest.mark.parametrize("shape", [(2, 7), (3, 5, 6), (2, 2, 3, 4), (2, 9, 11), (1, 8, 16)])
@pytest.mark.parametrize("normalises", [True, False])
def test_records_without_crops_are_those_of_the_plain_transform(
    shape: tuple[int, ...], innermost: bool, normalises: bool
) -> None:
    torch.manual_seed(0)
    raw = torch.randint(0, 256, (9, *shape), dtype=torch.uint8)
    numbers = (tuple(0.1 * (at + 1) for at in range(shape[0])),) * 2 if normalises else ()
    transform = Transform(*numbers)
    positions = torch.randint(0, 9, (5, 4))[:, ::2]  # not contiguous
    pixels = make_pixel_pool(raw.transpose(1, -1).contiguous().transpose(1, -1), transform, torch.float32)
    assert pixels is not None
    expected = _in_layout(transform.prepare(raw[positions.flatten()]), 5, 2, innermost)
    assert torch.equal(pixels.gather(positions, None, tuple(expected.shape), innermost), expected)


def test_a_position_outside_of_the_pool_is_refused() -> None:
    pixels = make_pixel_pool(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), Transform(), torch.float32)
    assert pixels is not None
    for position in (-1, 3):
        with pytest.raises(IndexError, match="pool of 3 records"):
            pixels.gather(torch.tensor([[0, position]]), None, (1, 1, 2, 2, 2), True)


def test_other_pools_are_left_to_the_plain_transform() -> None:
    assert make_pixel_pool(torch.zeros(3, 1, 2, 2), Transform(), torch.float32) is None  # numbers already
    assert make_pixel_pool(torch.zeros(3, 4, dtype=torch.uint8), Transform(), torch.float32) is None  # a mean per unit


@pytest.mark.parametrize("units", [1, 7, 8, 29])
@pytest.mark.parametrize("batch", [1, 7, 8, 10, 17])
def test_numbers_with_the_batch_innermost_are_those_of_indexing(units: int, batch: int) -> None:
    torch.manual_seed(0)
    pool, positions = torch.randn(9, units), torch.randint(0, 9, (3, 2 * batch))[:, ::2]  # not contiguous
    found = gather_batch_innermost(pool, positions)
    assert found is not None
    assert torch.equal(found, pool[positions].mT)


def test_numbers_at_a_position_outside_of_the_pool_are_refused() -> None:
    for position in (-1, 3):
        with pytest.raises(IndexError, match="pool of 3 records"):
            gather_batch_innermost(torch.zeros(3, 2), torch.tensor([[0, position]]))


def test_numbers_of_another_type_are_left_to_pytorch() -> None:
    assert gather_batch_innermost(torch.zeros(3, 2, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.int64)) is None
