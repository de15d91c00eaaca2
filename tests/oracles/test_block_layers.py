"""Traced networks of every layer that has a block, drawn at random, against one ordinary module per client."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from per_client import compare
from torch import Tensor, nn
from torch.nn import functional

from fedlog.engine.training.block import compile_module, convolve, library
from fedlog.engine.training.block.registry import BLOCKS
from fedlog.engine.training.block.trace import Add, Concatenate, SpatialMean
from fedlog.models.masked_dropout import MaskedAlphaDropout, MaskedDropout, replace_dropout
from fedlog.models.networks import InvertedResidual, signal_cnn

ACTIVATIONS = (
    nn.ReLU(),
    nn.ReLU6(),
    nn.LeakyReLU(0.2),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.SiLU(),
    nn.Tanh(),
    nn.Sigmoid(),
    nn.ELU(0.7),
    nn.SELU(),
    nn.ReLU(inplace=True),
)
DROPOUTS = (MaskedDropout, MaskedAlphaDropout)


class Branches(nn.Module):
    """A residual addition or a concatenation of two ways from one input."""

    def __init__(self, one: nn.Module, other: nn.Module, joined: str) -> None:
        super().__init__()
        self.one, self.other, self.joined = one, other, joined

    def forward(self, inputs: Tensor) -> Tensor:
        one, other = self.one(inputs), self.other(inputs)
        if self.joined == "cat":
            return torch.cat([one, other], dim=1)
        if self.joined == "in place":
            one += other
            return functional.relu(one)
        return one + other


class Mean(nn.Module):
    """The mean over all places."""

    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.mean(self.axes)


class Reshape(nn.Module):
    """Flattening as people write it."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.view(inputs.size(0), -1)


def _convolution(draw: st.DrawFn, flat: bool, before: int, after: int) -> nn.Module:
    kind, axes = (nn.Conv1d, 1) if flat else (nn.Conv2d, 2)
    groups = draw(st.sampled_from([g for g in (1, 1, 2, before) if before % g == after % g == 0]))
    each = [[draw(st.integers(low, high)) for _ in range(axes)] for low, high in ((1, 4), (1, 3), (0, 2))]
    kernel, stride, padding = (tuple(one) for one in each)
    if draw(st.integers(0, 4)) == 0:
        stride, padding = (1,) * axes, "same"
    return kind(before, after, kernel, stride, padding, groups=groups, bias=draw(st.booleans()))


def _pool(draw: st.DrawFn, flat: bool) -> nn.Module:
    size, stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    options = {"stride": stride, "padding": draw(st.integers(0, size // 2)), "ceil_mode": draw(st.booleans())}
    which = draw(st.sampled_from(["max", "mean", "adaptive"]))
    if which == "adaptive":
        return (nn.AdaptiveAvgPool1d if flat else nn.AdaptiveAvgPool2d)(draw(st.integers(1, 4)))
    if which == "max":
        return (nn.MaxPool1d if flat else nn.MaxPool2d)(size, **options)
    options["count_include_pad"] = draw(st.booleans())
    return (nn.AvgPool1d if flat else nn.AvgPool2d)(size, **options)


def _norm(draw: st.DrawFn, shape: tuple[int, ...]) -> nn.Module:
    channels = shape[0]
    groups = draw(st.sampled_from([g for g in (1, 2, channels) if channels % g == 0]))
    running = nn.BatchNorm2d(channels) if len(shape) == 3 else nn.BatchNorm1d(channels)
    running.num_batches_tracked = None
    affine = draw(st.booleans())
    return draw(
        st.sampled_from(
            [
                nn.GroupNorm(groups, channels, affine=affine),
                nn.LayerNorm(shape, elementwise_affine=affine),
                running.eval(),
            ]
        )
    )


def _layer(draw: st.DrawFn, shape: tuple[int, ...]) -> nn.Module:
    flat = len(shape) == 2
    which = draw(st.sampled_from(["conv", "conv", "pool", "norm", "activation", "dropout", "residual", "cat"]))
    if which == "conv":
        return _convolution(draw, flat, shape[0], draw(st.sampled_from([1, 2, 4, 6, 9])))
    if which == "pool":
        return _pool(draw, flat)
    if which == "norm":
        return _norm(draw, shape)
    if which == "activation":
        return draw(st.sampled_from(ACTIVATIONS))
    if which == "dropout":
        return draw(st.sampled_from(DROPOUTS))(0.5, per_channel=draw(st.booleans()))
    same = (nn.Conv1d if flat else nn.Conv2d)(shape[0], shape[0], 3, padding=1, bias=False)
    other = draw(st.sampled_from([nn.Identity(), nn.ReLU(), nn.GroupNorm(1, shape[0])]))
    return Branches(same, other, draw(st.sampled_from(["add", "in place"])) if which == "residual" else "cat")


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Some layers on maps or signals, a way to units, and some layers on units; and the shape of a record."""
    flat = draw(st.booleans())
    shape = (draw(st.integers(1, 4)), *(draw(st.integers(5, 9)) for _ in range(1 if flat else 2)))
    layers: list[nn.Module] = []
    now = shape
    for _ in range(draw(st.integers(1, 5))):
        layer = _layer(draw, now)
        outputs = nn.Sequential(*layers)(torch.rand(2, *shape, requires_grad=True) * 1)
        try:
            layer(outputs[:1] * 1)
            outputs = layer(outputs)
            outputs.sum().backward()
        # A window larger than its map, an in-place layer after one that needs its outputs, or a norm of single values:
        # PyTorch refuses to normalise one record of them.
        except (RuntimeError, ValueError):
            continue
        layers.append(layer)
        now = tuple(outputs.shape[1:])
    layers.append(draw(st.sampled_from([nn.Flatten(), Reshape(), Mean((-1,) if flat else (2, -1))])))
    units = now[0] if isinstance(layers[-1], Mean) else torch.Size(now).numel()
    for width in draw(st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=2)):
        layers += [nn.Linear(units, width), draw(st.sampled_from([*ACTIVATIONS, nn.LayerNorm(width)]))]
        # A norm of two nearly equal numbers magnifies rounding 1 / sqrt(eps) times: 300 with the usual eps.
        layers += [nn.GroupNorm(width // 2, width, eps=0.01)] * draw(st.integers(0, 1))
        layers += [draw(st.sampled_from(DROPOUTS))(0.25, per_channel=False)] * draw(st.integers(0, 1))
        units = width
    return nn.Sequential(*layers), shape


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(deadline=None, max_examples=60)
@given(networks(), st.integers(1, 3), st.sampled_from([1, 2, 5, 8, 9]), st.booleans(), st.integers(0, 2**31))
def test_drawn_networks_agree_with_one_module_per_client(drawn, clients, batch, with_masks, seed) -> None:
    module, shape = drawn
    torch.manual_seed(seed)
    images = torch.randn(7, *shape, dtype=torch.float64)
    names = [name for name, _ in module.named_parameters()]
    frozen = frozenset(name for name in names[1:] if torch.rand(()) < 0.2)
    compare(module, images, torch.randint(0, 7, (clients, batch)), frozen=frozen, with_masks=with_masks)


def test_every_registered_layer_is_drawn() -> None:
    drawn = {type(layer) for layer in ACTIVATIONS} | {*DROPOUTS, Add, Concatenate, SpatialMean}
    drawn |= {nn.Conv1d, nn.Conv2d, nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d}
    drawn |= {nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.GroupNorm, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d}
    assert drawn | {nn.Linear, nn.Flatten} == set(BLOCKS)


class Frozen(nn.Sequential):
    """Layers that stay in evaluation mode."""

    def train(self, mode: bool = True) -> Frozen:
        return super().train(mode=False)


def test_a_frozen_inverted_residual_agrees() -> None:
    torch.manual_seed(1)
    block = InvertedResidual(4, 4, expansion=3, stride=1)
    for layer in block.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.num_batches_tracked = None
    module = nn.Sequential(Frozen(block), nn.AdaptiveAvgPool2d(1), nn.Flatten()).train()
    compare(module, torch.randn(5, 4, 7, 7, dtype=torch.float64), torch.randint(0, 5, (2, 3)))


def test_signals_agree() -> None:
    torch.manual_seed(2)
    module = replace_dropout(signal_cnn(3, 40))
    compare(module, torch.randn(6, 3, 40, dtype=torch.float64), torch.randint(0, 6, (3, 10)))


class Scaled(nn.Module):
    """Operations without a block around a layer that has one: a parameter of its own, a chunk, an outer sum."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.convolution = nn.Conv2d(2, 4, 3, padding=1)
        self.after = nn.Conv2d(4, 3, 3, stride=2)
        self.drop = MaskedDropout(0.5, per_channel=False)

    def forward(self, inputs: Tensor) -> Tensor:
        maps = self.convolution(inputs) * self.scale
        left, right = maps.chunk(2, dim=1)
        return self.drop(self.after(torch.cat([left * right, left], dim=1)).relu().mean((2, 3)).square())


def test_what_has_no_block_is_computed_between_blocks() -> None:
    torch.manual_seed(3)
    compare(
        Scaled(),
        torch.randn(5, 2, 7, 6, dtype=torch.float64),
        torch.randint(0, 5, (3, 4)),
        without_block=("mul", "getitem", "getitem_1", "mul_1", "square"),
    )


class Doubtful(nn.Module):
    """An operation that `vmap` refuses: it looks at a value."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(_halved_if_large(self.first(inputs)))


@torch.fx.wrap
def _halved_if_large(values: Tensor) -> Tensor:
    return values / 2 if values.sum().item() > 1e9 else values * 1


def test_what_vmap_cannot_run_is_looped_for_that_stage_alone() -> None:
    torch.manual_seed(4)
    compare(
        Doubtful(),
        torch.randn(5, 4, dtype=torch.float64),
        torch.randint(0, 5, (3, 2)),
        without_block=("_halved_if_large",),
    )


class OnTheSide(nn.Module):
    """A value that is changed in place through a view of it: a trace does not see that."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        units = self.first(inputs)
        units[:, :3].relu_()
        return units


def test_a_network_that_computes_something_else_is_not_used() -> None:
    assert compile_module(OnTheSide(), (4,)) is None


class Aside(nn.Module):
    """A branch that nothing reads, next to layers that one compiled call computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4))
        self.aside = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4))
        self.last = nn.Linear(64, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        maps = self.first(inputs)
        self.aside(maps)
        return self.last(maps.flatten(1))


def test_a_branch_that_nothing_reads_gets_no_gradient() -> None:
    network = compile_module(Aside(), (1, 4, 4))
    assert network is not None
    params = {name: value.detach()[None].requires_grad_() for name, value in Aside().named_parameters()}
    features = network.compute_features(params, torch.randn(1, 1, 4, 4, 2), None)
    gradients = torch.autograd.grad(features.sum(), list(params.values()), allow_unused=True)
    reached = {name for name, gradient in zip(params, gradients, strict=True) if gradient is not None}
    assert reached == {name for name in params if not name.startswith("aside")}


@pytest.fixture(params=["plain", "AVX2"])
def _other_instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    """The passes as a machine without AVX2, or without AVX-512, runs them."""
    name = {"plain": "convolve_plainly", "AVX2": "convolve_narrowly"}[request.param]
    switch = ctypes.c_int.in_dll(library.LIBRARY, name)
    switch.value = 1
    assert library.name_instruction_set() in ("plain", request.param)
    yield
    switch.value = 0


@pytest.mark.usefixtures("_other_instructions")
@pytest.mark.parametrize("batch", [1, 10])
def test_the_passes_of_other_machines_agree_as_well(batch: int) -> None:
    torch.manual_seed(5)
    module = nn.Sequential(
        *(nn.Conv2d(2, 6, 3, 2, 1), nn.GroupNorm(2, 6), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
        *(nn.Conv2d(6, 12, 3, 1, 1, groups=6), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten()),
    )
    compare(module, torch.randn(5, 2, 14, 13, dtype=torch.float64), torch.randint(0, 5, (2, batch)))


def test_avx2_and_avx512_give_the_same_bits() -> None:
    if library.name_instruction_set() != "AVX-512":
        pytest.skip("this processor has no AVX-512")
    torch.manual_seed(6)
    shape = convolve.ConvShape(6, 16, 14, 14, 5, 5, 2, 2, rectify=True)
    inputs, weight = torch.randn(3, 6, 14, 14, 10, requires_grad=True), torch.randn(3, 16, 6, 5, 5, requires_grad=True)
    switch = ctypes.c_int.in_dll(library.LIBRARY, "convolve_narrowly")
    found = []
    for switch.value in (0, 1):
        pooled = convolve.convolve_and_pool(shape, inputs, weight, None)
        found.append((pooled, *torch.autograd.grad(pooled.square().sum(), (inputs, weight))))
    switch.value = 0
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
