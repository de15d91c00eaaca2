"""Normalisation, crop and flip against Pillow and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from fedlog.core.keys import Key
from fedlog.data.transforms import IDENTITY, Transform, draw_augmentation
from fedlog.data.undivided_data import CIFAR10_TRANSFORM


def by_pillow(image: np.ndarray, transform: Transform, row: int, column: int, flip: bool) -> np.ndarray:
    """One RGB image (3, H, W), padded with black, cropped, flipped and then normalised in float64."""
    _, height, width = image.shape
    picture = ImageOps.expand(Image.fromarray(image.transpose(1, 2, 0)), border=transform.crop_padding, fill=0)
    picture = picture.crop((column, row, column + width, row + height))
    picture = ImageOps.mirror(picture) if flip else picture
    values = np.asarray(picture, np.float64) / 255
    return ((values - np.array(transform.mean)) / np.array(transform.std)).transpose(2, 0, 1)


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(0, 5),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    padding=st.integers(0, 4),
    flip=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_augmentation_is_what_pillow_does(n: int, height: int, width: int, padding: int, flip: bool, seed: int) -> None:
    transform = Transform((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), crop_padding=padding, flip=flip)
    raw = torch.randint(0, 256, (n, 3, height, width), generator=Key(seed).torch(), dtype=torch.uint8)
    draws = draw_augmentation(transform, n, Key(seed).child("draws").torch())
    found = transform.augment(raw, draws)
    assert found.shape == raw.shape
    assert found.dtype == torch.float32
    for index in range(n):
        expected = by_pillow(
            raw[index].numpy(), transform, int(draws.top[index]), int(draws.left[index]), bool(draws.flips[index])
        )
        np.testing.assert_allclose(found[index].numpy(), expected, rtol=1e-5, atol=1e-5)


def test_no_shift_and_no_flip_is_plain_preparation() -> None:
    raw = torch.randint(0, 256, (4, 3, 32, 32), generator=Key(0).torch(), dtype=torch.uint8)
    draws = draw_augmentation(CIFAR10_TRANSFORM, 4, Key(1).torch())
    centred = type(draws)(torch.full((4,), 4), torch.full((4,), 4), torch.zeros(4, dtype=torch.bool))
    assert torch.equal(CIFAR10_TRANSFORM.augment(raw, centred), CIFAR10_TRANSFORM.prepare(raw))


def test_draws_cover_every_offset_and_both_directions() -> None:
    draws = draw_augmentation(CIFAR10_TRANSFORM, 2000, Key(3).torch())
    assert set(draws.top.tolist()) == set(draws.left.tolist()) == set(range(9))
    assert 900 < int(draws.flips.sum()) < 1100
    assert not torch.equal(draws.top, draws.left)
    again = draw_augmentation(CIFAR10_TRANSFORM, 2000, Key(3).torch())
    assert torch.equal(draws.top, again.top)
    assert torch.equal(draws.flips, again.flips)


def test_without_crop_or_flip_nothing_is_drawn_but_no_change() -> None:
    draws = draw_augmentation(IDENTITY, 10, Key(0).torch())
    assert int(draws.top.sum()) == int(draws.left.sum()) == int(draws.flips.sum()) == 0
    assert not IDENTITY.augments


@pytest.mark.parametrize("shape", [(5, 2), (5, 9, 128), (5, 1, 8, 8)])
def test_identity_leaves_floats_alone(shape: tuple[int, ...]) -> None:
    raw = torch.randn(shape, generator=Key(0).torch())
    assert torch.equal(IDENTITY.prepare(raw), raw)


def test_signals_are_normalised_by_channel() -> None:
    raw = torch.randn(3, 2, 5, generator=Key(0).torch())
    found = Transform((1.0, 2.0), (0.5, 4.0)).prepare(raw)
    torch.testing.assert_close(found[:, 0], (raw[:, 0] - 1.0) / 0.5)
    torch.testing.assert_close(found[:, 1], (raw[:, 1] - 2.0) / 4.0)
