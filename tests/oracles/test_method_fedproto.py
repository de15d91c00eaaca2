"""FedProto against a computation by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from by_hand import (
    CLASSES,
    CLOSE,
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

from fedlog.algorithms.fedproto import FedProto
from fedlog.algorithms.interface import ModelPlan
from fedlog.core.heads.gaussian import make_nearest_mean_head
from fedlog.core.keys import Key
from fedlog.wire.message import Contribution

LAMBDA = 3.0


def pull_to(prototypes: dict[int, Array], regularisation: float) -> Pull:
    """The gradient of regularisation * mean over records and dimensions of (z - prototype)^2."""

    def pull(z: Array, y: np.ndarray) -> Array:
        slope = np.zeros_like(z)
        for row, label in enumerate(y):
            if label in prototypes:
                slope[row] = 2 * regularisation * (z[row] - prototypes[label]) / (len(y) * WIDTH)
        return slope

    return pull


def by_hand(regularisation: float) -> tuple[list[Model], dict[int, Array]]:
    models, prototypes = [initial(), initial()], {}
    for round_number in range(1, ROUNDS + 1):
        pull = pull_to(prototypes, regularisation)
        models = [
            train(model, records()[at], client_key(at, round_number, "prototypes"), pull=pull)
            for at, model in enumerate(models)
        ]
        held: dict[int, list[Array]] = {}
        for model, (x, y) in zip(models, records(), strict=True):
            for z, label in zip(features(model, x), y, strict=True):
                held.setdefault(int(label), []).append(z)
        # The mean over everyone's records is the mean of the clients' means weighted by their counts.
        prototypes = {label: np.mean(rows, axis=0) for label, rows in held.items()}
    return models, prototypes


def test_two_clients_two_rounds(tmp_path: Path) -> None:
    found = run("fedproto", tmp_path, regularisation=LAMBDA)
    assert gap(found, by_hand(LAMBDA)[0]) < CLOSE
    assert gap(found, by_hand(0.0)[0]) > 100 * CLOSE  # without the regulariser


def test_the_clients_means_differ_enough_for_weights_to_matter() -> None:
    models, prototypes = by_hand(LAMBDA)
    for label in prototypes:
        parts = [features(m, x[y == label]).mean(0) for m, (x, y) in zip(models, records(), strict=True) if label in y]
        if len(parts) == 2 and np.abs(np.mean(parts, axis=0) - prototypes[label]).max() > 0.01:
            return
    raise AssertionError("an unweighted mean would pass")


def test_prediction_by_the_nearest_prototype_over_all_classes(tmp_path: Path) -> None:
    found = run("fedproto", tmp_path, regularisation=LAMBDA, prediction="nearest-prototype")
    models, prototypes = by_hand(LAMBDA)
    assert len(prototypes) == CLASSES
    points = np.random.default_rng(0).normal(size=(200, 3))
    for ours, model in zip(found, models, strict=True):
        z = features(model, points)
        nearest = np.argmin([((z - prototypes[label]) ** 2).sum(1) for label in range(CLASSES)], axis=0)
        logits = z @ ours["head"][:, 1:].T + ours["head"][:, 0]
        assert (logits.argmax(1) == nearest).all()


def test_a_class_that_no_participant_holds_keeps_its_prototype() -> None:
    method = FedProto(ModelPlan(n_class=3, width=2, layers=(("head",),), n_entries=9))
    counts = torch.tensor([2.0, 4.0, 0.0], dtype=torch.float64)
    sums = torch.tensor([[2.0, 6.0], [4.0, -4.0], [0.0, 0.0]], dtype=torch.float64)
    first = method.step("prototypes", method.begin(Key(0)), Contribution((sums, counts)))
    assert first["present"].tolist() == [True, True, False]
    assert first["means"].tolist() == [[1, 3], [1, -1], [0, 0]]
    counts, sums = counts.flip(0), 3 * sums.flip(0)  # now class 0 is nobody's
    second = method.step("prototypes", first, Contribution((sums, counts)))
    assert second["present"].tolist() == [True, True, True]
    assert second["means"].tolist() == [[1, 3], [3, -3], [3, 9]]


def test_a_class_without_a_prototype_never_wins() -> None:
    means = torch.tensor([[100.0, 0.0], [0.0, 0.0], [0.0, 100.0]])
    head = make_nearest_mean_head(means, torch.tensor([True, False, True]))
    assert torch.isfinite(head).all()
    points = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))  # all nearest to the absent class's zeros
    winners = (points @ head[:, 1:].T + head[:, 0]).argmax(1)
    assert set(winners.tolist()) == {0, 2}
