"""FedDBE against a computation by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import (
    CLOSE,
    EVERYTHING,
    ROUNDS,
    SIZES,
    WIDTH,
    Array,
    Model,
    Pull,
    client_key,
    features,
    gap,
    initial,
    records,
    run,
    train,
    weighted,
)

from fedlog.algorithms.interface import Batch
from fedlog.algorithms.losses import NearGlobalMeanLoss

KAPPA = 4.0


def pull_to(global_mean: Array, kappa: float, momentum: float) -> Pull:
    """The gradient of kappa * mean over dimensions of (m - global mean)^2 / 2, m the running mean of the features."""
    running = np.zeros(WIDTH)

    def pull(z: Array, y: np.ndarray) -> Array:
        nonlocal running
        running = (1 - momentum) * running + momentum * z.mean(0)
        return np.tile(kappa * (running - global_mean) / WIDTH * momentum / len(z), (len(z), 1))

    return pull


def by_hand(kappa: float, momentum: float, personal: tuple[str, ...]) -> list[Model]:
    # The opening: everyone trains once without anything of the method, and only the mean feature is kept.
    opened = [train(initial(), records()[at], client_key(at, 0, "mean feature")) for at in (0, 1)]
    means = [features(model, x).mean(0) for model, (x, _) in zip(opened, records(), strict=True)]
    global_mean = sum(n * mean for n, mean in zip(SIZES, means, strict=True)) / sum(SIZES)
    shifts = [np.zeros(WIDTH), np.zeros(WIDTH)]
    common = initial()
    for round_number in range(1, ROUNDS + 1):
        models = [
            train(
                {**common, "shift": shifts[at]},
                records()[at],
                client_key(at, round_number, "average"),
                moves=(*EVERYTHING, *personal),
                pull=pull_to(global_mean, kappa, momentum),
            )
            for at in (0, 1)
        ]
        shifts = [model["shift"] for model in models]
        common = weighted(models, EVERYTHING)
    return [{**common, "shift": shift} for shift in shifts]


@pytest.mark.parametrize("momentum", [1.0, 0.3])
def test_two_clients_two_rounds(momentum: float, tmp_path: Path) -> None:
    found = run("feddbe", tmp_path, kappa=KAPPA, momentum=momentum)
    assert gap(found, by_hand(KAPPA, momentum, ("shift",))) < CLOSE
    assert gap(found, by_hand(0.0, momentum, ("shift",))) > 100 * CLOSE  # without the mean term
    assert gap(found, by_hand(KAPPA, momentum, ())) > 100 * CLOSE  # without the personal bias
    assert np.abs(found[0]["shift"] - found[1]["shift"]).max() > 100 * CLOSE  # it is never averaged


def test_in_a_stack_a_batch_of_padding_leaves_a_clients_running_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 5, WIDTH, generator=generator, dtype=torch.float64)
    logits = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    weights = torch.stack([torch.full((5,), 0.2, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)])
    batch = Batch(features, logits, torch.zeros(2, 5, dtype=torch.int64), weights)
    before = torch.ones(2, WIDTH, dtype=torch.float64)
    loss = NearGlobalMeanLoss(KAPPA, 0.3)
    _, carry = loss(batch, {"mean": torch.zeros(WIDTH, dtype=torch.float64)}, {"running": before})
    assert torch.equal(carry["running"][1], before[1])
    assert torch.allclose(carry["running"][0], 0.7 * before[0] + 0.3 * features[0].mean(0))
