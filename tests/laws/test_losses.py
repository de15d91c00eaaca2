"""Laws of the losses: padding has no effect, and a stacked block gives each client the loss of a plain loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlog.algorithms.interface import EVERYTHING, Batch, Carry, Loss, Phase, UnrequestedParams, cross_entropy
from fedlog.algorithms.losses import (
    ClassMeansLoss,
    ComparedFeatures,
    NearGlobalMeanLoss,
    NearModelLoss,
    NearPrototypeLoss,
)
from fedlog.core.keys import Key
from fedlog.errors import InputError

Params = dict[str, Tensor]


class _NearDrawnModel(NearModelLoss):
    """`NearModelLoss`, with just those constants that name a parameter."""

    def __call__(self, batch: Batch, constants: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
        return super().__call__(batch, {name: constants[name] for name in MODEL}, carry)


MODEL = ("matrix", "single")
LOSSES: dict[str, Loss] = {
    "cross-entropy": cross_entropy,
    "clustered": ClassMeansLoss(alpha=0.3, beta=0.05, margin=None),
    "clustered with margin": ClassMeansLoss(alpha=0.3, beta=0.05, margin=1.5),
    "near prototype": NearPrototypeLoss(regularisation=0.7),
    "near global mean": NearGlobalMeanLoss(kappa=0.6, momentum=0.2),
    "near model": _NearDrawnModel(strength=0.9),
}


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Batch, Params, Params]:
    """A block of clients with 1 to 5 records each, padded with garbage; some classes have no mean."""
    clients, width, n_class = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    sizes = [draw(st.integers(1, 5)) for _ in range(clients)]
    longest = max(sizes)
    generator = Key(draw(st.integers(0, 2**32))).torch()

    def randn(*shape: int) -> Tensor:
        return 2 * torch.randn(shape, generator=generator, dtype=torch.float64)

    weights = torch.stack([(torch.arange(longest) < size).double() / size for size in sizes])
    labels = torch.randint(0, n_class, (clients, longest), generator=generator)
    model = {"matrix": randn(clients, width, 2), "single": randn(clients)}
    batch = Batch(randn(clients, longest, width), randn(clients, longest, n_class), labels, weights, model)
    present = torch.rand((clients, n_class), generator=generator) < 0.7
    means = randn(clients, n_class, width) * present[..., None]
    return (
        batch,
        {
            "means": means,
            "present": present,
            "mean": randn(clients, width),
            "matrix": randn(clients, width, 2),
            "single": randn(clients),
        },
        {"running": randn(clients, width)},
    )


def _client(block: Batch, at: int) -> Batch:
    real = block.weights[at] > 0
    records = (block.features, block.logits, block.labels, block.weights)
    return Batch(*(values[at][real] for values in records), _row(dict(block.params), at))


def _row(values: Params, at: int) -> Params:
    return {name: value[at] for name, value in values.items()}


@pytest.mark.parametrize("name", LOSSES)
@settings(deadline=None, max_examples=25)
@given(drawn=blocks())
def test_a_block_is_its_clients_without_their_padding(name: str, drawn: tuple[Batch, Params, Params]) -> None:
    batch, constants, carry = drawn
    together, after = LOSSES[name](batch, constants, carry)
    for at in range(len(together)):
        alone, own_after = LOSSES[name](_client(batch, at), _row(constants, at), _row(carry, at))
        torch.testing.assert_close(together[at], alone, rtol=1e-12, atol=1e-12)
        for part, value in own_after.items():
            torch.testing.assert_close(after[part][at], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@settings(deadline=None, max_examples=25)
@given(drawn=blocks())
def test_padding_has_no_gradient(name: str, drawn: tuple[Batch, Params, Params]) -> None:
    batch, constants, carry = drawn
    features = batch.features.clone().requires_grad_()
    logits = batch.logits.clone().requires_grad_()
    loss, _ = LOSSES[name](replace(batch, features=features, logits=logits), constants, carry)
    loss.sum().backward()
    padding = batch.weights == 0
    for leaf in (features, logits):
        assert leaf.grad is None or not bool(leaf.grad[padding].any())


def _entropy(batch: Batch) -> float:
    found = 0.0
    for scores, label in zip(batch.logits.tolist(), batch.labels.tolist(), strict=True):
        found -= scores[label] - math.log(sum(math.exp(score) for score in scores))
    return found / len(batch.labels)


def _clusters(alpha: float, beta: float, margin: float) -> Callable[[Batch, Params, Params], float]:
    def plain(batch: Batch, constants: Params, carry: Params) -> float:
        found = 0.0
        for feature, label in zip(batch.features, batch.labels.tolist(), strict=True):
            for other, (mean, present) in enumerate(zip(constants["means"], constants["present"], strict=True)):
                distance = math.dist(feature.tolist(), mean.tolist())
                if present and other == label:
                    found += alpha * distance**2
                elif present:
                    found -= beta * min(distance, margin) ** 2
        return found / len(batch.labels)

    return plain


def _prototype(batch: Batch, constants: Params, carry: Params) -> float:
    found = 0.0
    for feature, label in zip(batch.features, batch.labels.tolist(), strict=True):
        if constants["present"][label]:
            found += math.dist(feature.tolist(), constants["means"][label].tolist()) ** 2 / len(feature)
    return 0.7 * found / len(batch.labels)


def _global_mean(batch: Batch, constants: Params, carry: Params) -> float:
    running = 0.8 * carry["running"] + 0.2 * batch.features.mean(0)
    return 0.6 * 0.5 * math.dist(running.tolist(), constants["mean"].tolist()) ** 2 / len(running)


def _model(batch: Batch, constants: Params, carry: Params) -> float:
    parts = [(batch.params[name].flatten().tolist(), constants[name].flatten().tolist()) for name in MODEL]
    return 0.9 / 2 * sum(math.dist(own, near) ** 2 for own, near in parts)


PLAIN = {
    "cross-entropy": lambda batch, constants, carry: 0.0,
    "clustered": _clusters(0.3, 0.05, math.inf),
    "clustered with margin": _clusters(0.3, 0.05, 1.5),
    "near prototype": _prototype,
    "near global mean": _global_mean,
    "near model": _model,
}


@pytest.mark.parametrize("name", LOSSES)
@settings(deadline=None, max_examples=25)
@given(drawn=blocks())
def test_a_loss_is_what_a_loop_over_records_gives(name: str, drawn: tuple[Batch, Params, Params]) -> None:
    batch, constants, carry = drawn
    alone, own, before = _client(batch, 0), _row(constants, 0), _row(carry, 0)
    found, _ = LOSSES[name](alone, own, before)
    assert float(found) == pytest.approx(_entropy(alone) + PLAIN[name](alone, own, before), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("scale", [1e3, 1e5])
def test_cross_entropy_does_not_overflow(scale: float) -> None:
    logits = torch.tensor([[scale, -scale], [-scale, scale]])
    batch = Batch(torch.zeros(2, 1), logits, torch.tensor([0, 0]), torch.full((2,), 0.5))
    loss, _ = cross_entropy(batch, {}, {})
    assert float(loss) == pytest.approx(scale)


def test_a_batch_of_padding_leaves_the_running_mean_alone() -> None:
    running = torch.ones(1, 2)
    batch = Batch(
        torch.full((1, 3, 2), 9.0), torch.zeros(1, 3, 4), torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3)
    )
    _, after = NearGlobalMeanLoss(kappa=1, momentum=0.5)(batch, {"mean": torch.zeros(1, 2)}, {"running": running})
    assert torch.equal(after["running"], running)


def test_a_loss_sees_the_parameters_only_if_it_asks() -> None:
    batch = Batch(torch.zeros(2, 1), torch.zeros(2, 3), torch.tensor([0, 1]), torch.full((2,), 0.5))
    with pytest.raises(InputError, match="without asking for them: head") as refused:
        NearModelLoss(1.0)(batch, {"head": torch.zeros(3)}, {})
    assert "reads_params = True" in str(refused.value.hint)
    for look in (len, list, dict):
        with pytest.raises(InputError, match="without asking"):
            look(batch.params)  # type: ignore[operator]
    params = {"head": torch.zeros(3)}
    assert Phase(EVERYTHING, 1, NearModelLoss(1.0), 0.1).select_params_for_loss(params) is params
    assert isinstance(Phase(EVERYTHING, 1, cross_entropy, 0.1).select_params_for_loss(params), UnrequestedParams)


def test_fedlog_c_takes_the_distance_before_or_after_the_dropout() -> None:
    features, dropped = torch.tensor([[1.0, 2.0]]), torch.tensor([[2.0, 0.0]])
    means = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    constants = {"means": means, "present": torch.ones(2, dtype=torch.bool)}
    batch = Batch(features, torch.zeros(1, 2), torch.tensor([0]), torch.ones(1), after_dropout=dropped)
    for distance, seen in ((ComparedFeatures.BEFORE_DROPOUT, features), (ComparedFeatures.AFTER_DROPOUT, dropped)):
        loss, _ = ClassMeansLoss(0.5, 0.25, None, distance)(batch, constants, {})
        own, other = (float((seen - mean).square().sum()) for mean in means)
        assert float(loss) == pytest.approx(math.log(2) + 0.5 * own - 0.25 * other)
    nothing_dropped = Batch(features, torch.zeros(1, 2), torch.tensor([0]), torch.ones(1))
    found, _ = ClassMeansLoss(0.5, 0.25, None, ComparedFeatures.AFTER_DROPOUT)(nothing_dropped, constants, {})
    assert float(found) == pytest.approx(math.log(2) + 0.5 * 5 - 0.25 * 1)
