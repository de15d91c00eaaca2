"""The stacked network against one ordinary `nn.Sequential` per client, values and gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from per_client import compare
from torch import Tensor, nn

from fedlog.engine.training.backends import Engine
from fedlog.engine.training.block import BlockNetwork, compile_module, library
from fedlog.models.body import build_body
from fedlog.models.masked_dropout import MaskedDropout
from fedlog.models.networks import cifar_cnn, cifar_cnn_small, mnist_cnn, small_cnn


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small only lose time to a second thread
    yield
    torch.set_num_threads(before)


def masked(module: nn.Sequential) -> nn.Sequential:
    """The module with its dropout layers replaced, as `Body` does it."""
    layers = [
        MaskedDropout(layer.p, per_channel=isinstance(layer, nn.Dropout2d))
        if isinstance(layer, nn.Dropout | nn.Dropout2d)
        else layer
        for layer in module
    ]
    return nn.Sequential(*layers)


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, int, int]]:
    """A random chain of one or two convolutions and one or two linear layers, and its input shape."""
    channels, layers = draw(st.integers(1, 3)), []
    rows, columns = draw(st.integers(9, 14)), draw(st.integers(9, 14))
    shape = (channels, rows, columns)
    for _ in range(draw(st.integers(1, 2))):
        width = draw(st.sampled_from([1, 3, 8, 17]))
        kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
        pool = (draw(st.sampled_from([1, 2, 2, 3])), draw(st.sampled_from([1, 2, 2, 3])))
        if (rows - kernel[0] + 1) // pool[0] < 1 or (columns - kernel[1] + 1) // pool[1] < 1:
            break
        layers.append(nn.Conv2d(channels, width, kernel, bias=draw(st.booleans())))
        tail = [nn.ReLU()] * draw(st.integers(0, 1)) + [MaskedDropout(0.5, per_channel=True)] * draw(st.integers(0, 1))
        if pool != (1, 1):
            tail.append(nn.MaxPool2d(pool))
        layers.extend(draw(st.permutations(tail)))
        channels = width
        rows, columns = (rows - kernel[0] + 1) // pool[0], (columns - kernel[1] + 1) // pool[1]
    layers.append(nn.Flatten())
    units = channels * rows * columns if layers[:-1] else shape[0] * shape[1] * shape[2]
    for width in draw(st.lists(st.integers(1, 6), min_size=0, max_size=2)):
        layers.append(nn.Linear(units, width, bias=draw(st.booleans())))
        layers.extend([nn.ReLU()] * draw(st.integers(0, 1)))
        layers.extend([MaskedDropout(0.25, per_channel=False)] * draw(st.integers(0, 1)))
        units = width
    return nn.Sequential(*layers), shape


@settings(deadline=None, max_examples=40)
@given(
    networks(),
    st.integers(1, 4),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**31),
)
def test_random_networks_agree_with_one_module_per_client(drawn, clients, batch, with_masks, dtype, seed) -> None:
    module, shape = drawn
    if not list(module.parameters()):
        return
    torch.manual_seed(seed)
    images = torch.randn(7, *shape, dtype=dtype)
    names = [name for name, _ in module.named_parameters()]
    frozen = frozenset(name for name in names[1:] if torch.rand(()) < 0.3)
    if frozen == frozenset(names):
        frozen = frozenset()
    compare(module, images, torch.randint(0, 7, (clients, batch)), frozen=frozen, with_masks=with_masks)


PAPER = {
    "mnist": (mnist_cnn, (1, 28, 28)),
    "cifar": (cifar_cnn, (3, 32, 32)),
    "cifar small": (cifar_cnn_small, (3, 32, 32)),
    "small": (lambda: small_cnn(3, 20, 17), (3, 20, 17)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PAPER)
def test_the_papers_networks_agree_with_one_module_per_client(name: str, dtype: torch.dtype) -> None:
    make, shape = PAPER[name]
    torch.manual_seed(1)
    compare(masked(make()), torch.randn(9, *shape, dtype=dtype), torch.randint(0, 9, (3, 4)))


def small_integers(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randint(-1, 2, shape).to(dtype)


@pytest.mark.parametrize("pool", [2, 3, (2, 3), (1, 2), (3, 1)])
@pytest.mark.parametrize("channels", [3, 17])
@pytest.mark.parametrize("rectify_first", [True, False])
def test_the_first_of_equal_maxima_takes_the_gradient(
    pool: int | tuple[int, int], channels: int, rectify_first: bool
) -> None:
    # Exact arithmetic on few values: windows of different content often have equal maxima, and who wins is seen in the
    # gradients of the kernels, or of the layer below.
    torch.manual_seed(2)
    images = torch.randint(0, 2, (6, 1, 12, 12)).double()
    pooling: list[nn.Module] = [nn.MaxPool2d(pool)]
    pooling = [nn.ReLU(), *pooling] if rectify_first else [*pooling, nn.ReLU()]
    module = nn.Sequential(
        nn.Conv2d(1, channels, 2), *pooling, nn.Conv2d(channels, 4, 2), nn.MaxPool2d(2), nn.Flatten()
    )
    for _ in range(3):
        compare(module, images, torch.randint(0, 6, (2, 3)), draw=small_integers)


@pytest.fixture
def _plain_instructions() -> Iterator[None]:
    """The passes without AVX2, as a machine without it would run them."""
    assert library.LIBRARY is not None
    plainly = ctypes.c_int.in_dll(library.LIBRARY, "convolve_plainly")
    plainly.value = 1
    yield
    plainly.value = 0


@pytest.mark.usefixtures("_plain_instructions")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PAPER)
def test_the_passes_for_any_processor_agree_as_well(name: str, dtype: torch.dtype) -> None:
    make, shape = PAPER[name]
    torch.manual_seed(6)
    compare(masked(make()), torch.randn(9, *shape, dtype=dtype), torch.randint(0, 9, (2, 11)))


@pytest.mark.parametrize("batch", [1, 7, 8, 10, 17])
@pytest.mark.parametrize("channels", [1, 2, 5, 6, 7, 12, 13])
def test_every_width_of_a_tile_and_every_rest_of_a_batch_agrees(channels: int, batch: int) -> None:
    torch.manual_seed(7)
    module = nn.Sequential(
        *(nn.Conv2d(2, channels, (2, 6)), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(channels, 3, (3, 1)), nn.MaxPool2d((1, 2)), nn.Flatten()),
    )
    for dtype in (torch.float32, torch.float64):
        compare(module, torch.randn(5, 2, 11, 12, dtype=dtype), torch.randint(0, 5, (2, batch)))


def test_a_value_that_is_no_number_stays_visible() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten())
    network = compiled(module, (1, 2, 2))
    params = {name: value.detach()[None] for name, value in module.named_parameters()}
    for pixel in range(4):
        images = torch.zeros(1, 1, 2, 2)
        images.view(-1)[pixel] = torch.nan
        assert (
            network.compute_features(params, network.gather(images.flatten(1), torch.zeros(1, 9).long()), None)
            .isnan()
            .all()
        )


def test_convolutions_have_no_block_where_nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "AVAILABLE", False)
    network = compile_module(masked(mnist_cnn()), (1, 28, 28))
    assert network is not None
    assert network.without_block[0] == "0 (Conv2d)"
    assert "C compiler" in Engine().explain(build_body("cnn", mnist_cnn, (1, 28, 28)))
    assert compile_module(nn.Sequential(nn.Linear(4, 2)), (4,)) is not None


def test_layers_for_units_take_vectors_and_flattened_images() -> None:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), MaskedDropout(0.5, per_channel=False), nn.Linear(5, 3))
    compare(module, torch.randn(6, 8, dtype=torch.float64), torch.randint(0, 6, (3, 4)))
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU())
    compare(module, torch.randn(6, 1, 4, 4, dtype=torch.float64), torch.randint(0, 6, (3, 4)))


def test_a_layer_in_two_places_is_computed_in_both() -> None:
    torch.manual_seed(6)
    rectify = nn.ReLU()
    module = nn.Sequential(nn.Linear(6, 5), rectify, nn.Linear(5, 4), rectify)
    compare(module, torch.randn(6, 6, dtype=torch.float64), torch.randint(0, 6, (3, 4)))


def test_parameters_shared_by_all_clients_count_once_and_collect_the_summed_gradient() -> None:
    torch.manual_seed(5)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4))
    network = compiled(module, (1, 8, 8))
    shared = {name: value.detach()[None].double().requires_grad_() for name, value in module.named_parameters()}
    own = {name: value.detach().repeat(3, *(1,) * (value.ndim - 1)).requires_grad_() for name, value in shared.items()}
    batch = network.gather(network.arrange(torch.randn(5, 1, 8, 8, dtype=torch.float64)), torch.randint(0, 5, (3, 2)))
    network.compute_features(shared, batch, None).square().sum().backward()
    network.compute_features(own, batch, None).square().sum().backward()
    for name, value in shared.items():
        torch.testing.assert_close(value.grad, own[name].grad.sum(0, keepdim=True))


def test_what_blocks_cannot_compute_is_left_to_the_caller() -> None:
    shared = nn.Linear(64, 64)
    assert compile_module(nn.Sequential(nn.Flatten(), shared, nn.ReLU(), shared), (1, 8, 8)) is None
    assert compile_module(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU()), (1, 8, 8)) is None  # ends in a map
    assert compile_module(nn.Sequential(nn.Flatten(), nn.ReLU()), (1, 8, 8)) is None  # nothing to gain


def compiled(module: nn.Sequential, input_shape: tuple[int, ...]) -> BlockNetwork:
    network = compile_module(module, input_shape)
    assert network is not None
    return network
