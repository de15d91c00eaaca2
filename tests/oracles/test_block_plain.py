"""The written-out training steps of plain bodies and of single chains against autograd: the same bits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from fedlog.algorithms.interface import Batch, cross_entropy
from fedlog.core.keys import Key
from fedlog.engine.training.block import library
from fedlog.engine.training.block.compile import compile_stacked_body
from fedlog.engine.training.block.network import BlockNetwork
from fedlog.engine.training.block.passes import (
    _compute_product_gradients_compiled,
    _multiply_compiled,
    compute_cross_entropy_gradients,
    compute_linear_outputs,
    compute_product_gradients,
    make_passes,
)
from fedlog.models.body import HEAD, Body, build_body, logits
from fedlog.models.networks import cifar_cnn, mlp, mnist_cnn, signal_cnn

pytestmark = pytest.mark.skipif(not library.AVAILABLE, reason="the passes are not compiled")
CLIENTS, CLASSES = 3, 4


class _Residual(nn.Module):
    """Two convolutions with a norm and a shortcut, all of it one chain."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Linear(8, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 2, rows, columns) -> (n, 5)."""
        maps = torch.relu(self.norm(self.first(inputs)))
        return self.last(torch.relu(maps + self.second(maps)).mean((2, 3)))


BODIES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "mnist": (mnist_cnn, (1, 28, 28), 10),
    "cifar": (cifar_cnn, (3, 32, 32), 7),
    "mlp": (lambda: mlp(12, (9, 5)), (12,), 8),
    "signals": (lambda: signal_cnn(9, 64), (9, 64), 5),
    "chain": (_Residual, (2, 8, 8), 10),
}


def _made(name: str) -> tuple[Body, BlockNetwork, dict[str, Tensor], dict[str, Tensor], Tensor]:
    """A body with its network, and parameters, multipliers and a batch for it."""
    make, shape, batch = BODIES[name]
    body = build_body(name, make, shape)
    compiled = compile_stacked_body(body)
    assert compiled is not None
    generator = Key(5).child(name).torch()
    clients = [body.make_initial_params(Key(at).child(name)) for at in range(CLIENTS)]
    params = {own: torch.stack([each[own] for each in clients]) for own in clients[0]}
    params[HEAD] = torch.randn(CLIENTS, CLASSES, 1 + body.width, generator=generator)
    masks = {
        site.name: (torch.rand(CLIENTS, batch, *site.shape, generator=generator) >= site.p) / (1 - site.p)
        for site in body.dropout
    }
    records = torch.randn(CLIENTS * batch, *shape, generator=generator)
    arranged = compiled.training.arrange(records)
    inputs = compiled.training.gather(arranged, torch.arange(CLIENTS * batch).view(CLIENTS, batch))
    return body, compiled.training, params, masks, inputs


@pytest.mark.parametrize("frozen", ["", "first", "last"])
@pytest.mark.parametrize("name", BODIES)
def test_written_out_passes_have_the_bits_of_autograd(name: str, frozen: str) -> None:
    """Features and gradients of the moving parameters, with layers frozen at either end of the body."""
    body, network, params, masks, inputs = _made(name)
    passes = make_passes(network)
    assert passes is not None
    ends = {"": (), "first": body.layers[0], "last": body.layers[-1]}
    moving = [own for layer in body.layers for own in layer if own not in ends[frozen]]
    for own in moving:
        params[own].requires_grad_()
    with torch.no_grad():
        found, tape = passes.forward(params, inputs, masks)
    features = network.compute_features(params, inputs, masks)
    assert torch.equal(found, features)
    with torch.no_grad():
        assert torch.equal(passes.evaluate(params, inputs), network.compute_features(params, inputs, None))
    gradient = torch.randn(features.shape, generator=Key(6).torch())
    expected = torch.autograd.grad(features, [params[own] for own in moving], gradient)
    with torch.no_grad():
        gradients = passes.backward(tape, gradient, moving)
    for own, right in zip(moving, expected, strict=True):
        of_own = gradients[own]
        assert of_own is not None
        assert of_own.shape == right.shape
        assert torch.equal(of_own, right)


@pytest.mark.parametrize("moves_head", [False, True])
def test_written_out_cross_entropy_has_the_bits_of_autograd(moves_head: bool) -> None:
    """The gradients of the features and of the head; one client's batch is filled up with records of weight 0."""
    generator = Key(7).torch()
    features = torch.randn(CLIENTS, 10, 50, generator=generator, requires_grad=True)
    head = torch.randn(CLIENTS, CLASSES, 51, generator=generator, requires_grad=moves_head)
    labels = torch.randint(0, CLASSES, (CLIENTS, 10), generator=generator)
    weights = torch.full((CLIENTS, 10), 0.1)
    weights[1, 7:] = 0
    scores = logits(features, {HEAD: head})
    losses, _ = cross_entropy(Batch(features, scores, labels, weights), {}, {})
    expected = torch.autograd.grad(losses.sum(), [features, head] if moves_head else [features])
    with torch.no_grad():
        found = compute_cross_entropy_gradients(features, scores, labels, weights, head, moves_head)
    assert (found[1] is not None) == moves_head
    for own, right in zip(found, expected, strict=False):
        assert own is not None
        assert torch.equal(own, right)


def test_bodies_that_end_a_chain_in_between_are_not_written_out() -> None:
    """A body with an activation that no chain has, between two ways that are added."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, inputs: Tensor) -> Tensor:
            """A sum of two layers' outputs."""
            middle = torch.tanh(self.first(inputs))
            return torch.relu(middle + self.second(middle))

    compiled = compile_stacked_body(build_body("residual", Residual, (6,)))
    assert compiled is not None
    assert make_passes(compiled.training) is None


@pytest.mark.parametrize("masked", ["", "convolve_narrowly", "convolve_plainly"])
@pytest.mark.parametrize(("batch", "units_in", "units_out"), [(10, 320, 50), (50, 400, 120), (50, 120, 100), (3, 5, 4)])
@pytest.mark.parametrize("innermost", [True, False])
def test_compiled_products_have_the_bits_of_pytorch(
    batch: int, units_in: int, units_out: int, innermost: bool, masked: str
) -> None:
    """With any instruction set; weights lie apart, as in Adam's rows. Where a bit would differ, PyTorch multiplies."""
    generator = Key(8).child(batch, units_in).torch()
    inputs = torch.randn(CLIENTS, units_in, batch, generator=generator).mT
    inputs = inputs if innermost else inputs.contiguous()
    size = units_in * units_out
    rows = torch.randn(CLIENTS, size + units_out + 3, generator=generator)
    weight, bias = rows[:, :size].view(CLIENTS, units_out, units_in), rows[:, size : size + units_out]
    gradient = torch.randn(CLIENTS, batch, units_out, generator=generator)
    with _without(masked):
        assert torch.equal(
            compute_linear_outputs(inputs, weight, bias), torch.baddbmm(bias[:, None], inputs, weight.mT)
        )
        of_inputs, of_weight = compute_product_gradients(inputs, weight, gradient, True, True)
        # The passes themselves are right, if not to the bit.
        own, (of_own_inputs, of_own_weight) = (
            _multiply_compiled(inputs, weight, bias),
            _compute_product_gradients_compiled(inputs, weight, gradient, True, True),
        )
    expected = torch.bmm(gradient, weight), torch.bmm(gradient.mT, inputs)
    for found, right in zip((of_inputs, of_weight), expected, strict=True):
        assert found is not None
        assert torch.equal(found, right)
    torch.testing.assert_close(own, torch.baddbmm(bias[:, None], inputs, weight.mT), rtol=1e-4, atol=1e-4)
    for near, right in zip((of_own_inputs, of_own_weight), expected, strict=True):
        torch.testing.assert_close(near, right, rtol=1e-4, atol=1e-4)


@contextmanager
def _without(masked: str) -> Iterator[None]:
    """Inside the block the compiled passes do not use the masked instruction sets."""
    if not masked:
        yield
        return
    switch = ctypes.c_int.in_dll(library.LIBRARY, masked)
    switch.value = 1
    try:
        yield
    finally:
        switch.value = 0
