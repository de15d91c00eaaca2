"""FedLog and FedLog-C against a computation by hand, with the head from a general-purpose optimiser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from by_hand import (
    CLASSES,
    LAYERS,
    ROUNDS,
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
)
from scipy.optimize import minimize
from scipy.special import logsumexp

BODY = (*LAYERS[0], *LAYERS[1])
CLOSE = 1e-4  # the optimiser's accuracy, once trained on


def statistics(models: list[Model]) -> Array:
    """The sum over all records of (1, features) in the row of the record's class."""
    sums = np.zeros((CLASSES, 1 + WIDTH))
    for model, (x, y) in zip(models, records(), strict=True):
        for z, label in zip(features(model, x), y, strict=True):
            sums[label] += [1.0, *z]
    return sums


def map_head(sums: Array) -> Array:
    """The maximum of <eta, sums> - (1 + n) * logsumexp(|eta_y|^2 / 4)."""
    records_and_prior = 1 + sums[:, 0].sum()

    def loss(flat: Array) -> tuple[float, Array]:
        eta = flat.reshape(sums.shape)
        energy = (eta**2).sum(1) / 4
        share = np.exp(energy - logsumexp(energy))
        slope = records_and_prior * share[:, None] * eta / 2 - sums
        return float(records_and_prior * logsumexp(energy) - (eta * sums).sum()), slope.ravel()

    solved = minimize(loss, sums.ravel() / records_and_prior, jac=True, method="BFGS", options={"gtol": 1e-9})
    return np.asarray(solved.x.reshape(sums.shape))


def cluster(means: Array, alpha: float, beta: float) -> Pull:
    """The gradient of the batch mean of alpha |z - own mean|^2 - beta * sum over the others of |z - their mean|^2."""

    def pull(z: Array, y: np.ndarray) -> Array:
        slope = np.zeros_like(z)
        for row, label in enumerate(y):
            for other in range(CLASSES):
                factor = alpha if other == label else -beta
                slope[row] += 2 * factor * (z[row] - means[other]) / len(y)
        return slope

    return pull


def by_hand(alpha: float, beta: float, old_head: bool = False) -> list[Model]:
    models = [initial(), initial()]
    sums = statistics(models)
    head = map_head(sums)
    for round_number in range(1, ROUNDS + 1):
        pull = cluster(sums[:, 1:] / sums[:, :1], alpha, beta)
        models = [
            train(
                {**model, "head": head},
                records()[at],
                client_key(at, round_number, "statistics"),
                moves=BODY,
                pull=pull,
            )
            for at, model in enumerate(models)
        ]
        sums = statistics(models)
        head = head if old_head else map_head(sums)
    return [{**model, "head": head} for model in models]


@pytest.mark.parametrize(
    ("method", "options", "alpha", "beta"),
    [("fedlog", {}, 0.0, 0.0), ("fedlog-c", {"alpha": 0.5, "beta": 0.1}, 0.5, 0.1)],
)
def test_two_clients_two_rounds(
    method: str, options: dict[str, float], alpha: float, beta: float, tmp_path: Path
) -> None:
    found = run(method, tmp_path, first_head="statistics", **options)
    assert gap(found, by_hand(alpha, beta)) < CLOSE
    assert gap(found, by_hand(alpha, beta, old_head=True)) > 100 * CLOSE  # without the head from the statistics
    if alpha:
        assert gap(found, by_hand(0.0, 0.0)) > 100 * CLOSE  # without the pull and the push
        assert gap(found, by_hand(alpha, 0.0)) > 10 * CLOSE  # without the push
