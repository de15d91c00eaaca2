"""Crops gathered by index against the plain transform, pixel by pixel."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedlog.data.transforms import Augmentation, Transform
from fedlog.engine.training.block import compile_body
from fedlog.models.cnn import cifar_cnn


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(8, 11),
    st.integers(8, 11),
    st.integers(0, 3),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**31),
)
def test_crops_are_those_of_the_plain_transform_bit_by_bit(
    channels, clients, batch, height, width, padding, dtype, seed
) -> None:
    torch.manual_seed(seed)
    raw = torch.randint(0, 256, (6, channels, height, width), dtype=torch.uint8)
    transform = Transform((0.3, 0.4, 0.5)[:channels], (0.7,) * channels, crop_padding=padding, flip=True)
    positions = torch.randint(0, 6, (clients, batch))
    rows, columns = torch.randint(0, 2 * padding + 1, (2, clients, batch))
    flips = torch.randint(0, 2, (clients, batch))
    module = nn.Sequential(nn.Conv2d(channels, 2, 3), nn.MaxPool2d(2), nn.Flatten())
    network = compile_body(module, (channels, height, width))
    assert network is not None

    black = transform.prepare(torch.zeros(1, channels, 1, 1, dtype=torch.uint8)).flatten().to(dtype)
    crops = network.crops(black, padding)
    assert crops is not None
    found = crops.gather(network.arrange(transform.prepare(raw).to(dtype)), positions, rows, columns, flips)

    draws = Augmentation(rows.flatten(), columns.flatten(), flips.flatten().bool())
    plain = transform.augment(raw[positions.flatten()], draws).to(dtype)
    arranged = network.arrange(plain)
    expected = network.gather(arranged, torch.arange(clients * batch).view(clients, batch))
    assert torch.equal(found, expected)


def test_a_network_gives_the_same_features_for_gathered_crops_as_for_cropped_images() -> None:
    torch.manual_seed(0)
    raw = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    transform = Transform((0.5,) * 3, (0.25,) * 3, crop_padding=4, flip=True)
    module = nn.Sequential(*[layer for layer in cifar_cnn() if not isinstance(layer, nn.Dropout)])
    network = compile_body(module, (3, 32, 32))
    assert network is not None
    params = {name: value.detach()[None].repeat(2, *(1,) * value.ndim) for name, value in module.named_parameters()}
    positions, flips = torch.randint(0, 5, (2, 3)), torch.randint(0, 2, (2, 3))
    rows, columns = torch.randint(0, 9, (2, 2, 3))
    black = transform.prepare(torch.zeros(1, 3, 1, 1, dtype=torch.uint8)).flatten()
    crops = network.crops(black, 4)
    assert crops is not None
    batch = crops.gather(network.arrange(transform.prepare(raw)), positions, rows, columns, flips)
    found = network.features(params, batch, None)
    for client in range(2):
        draws = Augmentation(rows[client], columns[client], flips[client].bool())
        with torch.no_grad():
            expected = module(transform.augment(raw[positions[client]], draws))
        torch.testing.assert_close(found[client], expected, rtol=1e-5, atol=1e-5)
