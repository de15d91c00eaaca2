"""The averaging methods against a computation by hand, and against what each would be without its defining step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from by_hand import (
    CLOSE,
    EPOCHS,
    EVERYTHING,
    LAYERS,
    NAMES,
    RATE,
    ROUNDS,
    SEED,
    Model,
    client_key,
    gap,
    initial,
    records,
    run,
    train,
    weighted,
)

from fedlog.core.keys import Key

LOWEST, MIDDLE, TOP = LAYERS
Steps = Callable[[Model, int, Key], Model]


def jointly(model: Model, at: int, key: Key) -> Model:
    return train(model, records()[at], key)


def averaged(shared: Sequence[str], steps: Steps = jointly) -> list[Model]:
    """Two rounds: everyone trains; what is shared becomes its weighted mean; the rest stays."""
    models = [initial(), initial()]
    for round_number in range(1, ROUNDS + 1):
        models = [steps(model, at, client_key(at, round_number, "average")) for at, model in enumerate(models)]
        mean = weighted(models, shared)
        models = [{**model, **mean} for model in models]
    return models


def head_then_body(model: Model, at: int, key: Key) -> Model:
    model = train(model, records()[at], key, moves=TOP, epochs=3, rate=0.1, phase=0)
    return train(model, records()[at], key, moves=(*LOWEST, *MIDDLE), phase=1)


def body_alone(model: Model, at: int, key: Key) -> Model:
    return train(model, records()[at], key, moves=(*LOWEST, *MIDDLE))


FEDREP = {"personal_layers": 1, "head_epochs": 3, "head_learning_rate": 0.1}


@pytest.mark.parametrize(
    ("method", "options", "right", "wrong"),
    [
        ("local", {}, lambda: averaged(()), lambda: averaged(TOP)),
        ("fedavg", {}, lambda: averaged(EVERYTHING), lambda: averaged(())),
        ("lg-fedavg-1", {}, lambda: averaged(TOP), lambda: averaged(EVERYTHING)),  # averaging the body too
        ("lg-fedavg-2", {}, lambda: averaged((*MIDDLE, *TOP)), lambda: averaged(EVERYTHING)),
        ("fedper", {"personal_layers": 1}, lambda: averaged((*LOWEST, *MIDDLE)), lambda: averaged(EVERYTHING)),
        ("fedper", {"personal_layers": 2}, lambda: averaged(LOWEST), lambda: averaged((*LOWEST, *MIDDLE))),
        (
            "fedrep",
            FEDREP,
            lambda: averaged((*LOWEST, *MIDDLE), head_then_body),
            lambda: averaged((*LOWEST, *MIDDLE)),  # trained jointly
        ),
        (
            "fedbabu",
            {},
            lambda: averaged((*LOWEST, *MIDDLE), body_alone),
            lambda: averaged((*LOWEST, *MIDDLE)),  # a head that moves
        ),
    ],
)
def test_two_clients_two_rounds(
    method: str,
    options: dict[str, float],
    right: Callable[[], list[Model]],
    wrong: Callable[[], list[Model]],
    tmp_path: Path,
) -> None:
    found = run(method, tmp_path, **options)
    assert gap(found, right()) < CLOSE
    assert gap(found, wrong()) > 100 * CLOSE


def test_the_average_is_weighted_by_records(tmp_path: Path) -> None:
    models = [jointly(initial(), at, client_key(at, 1, "average")) for at in (0, 1)]
    unweighted = {name: (models[0][name] + models[1][name]) / 2 for name in EVERYTHING}
    assert gap([weighted(models, EVERYTHING)], [unweighted]) > 100 * CLOSE


def test_pooled_trains_one_model_on_everyones_records(tmp_path: Path) -> None:
    (found,) = run("pooled", tmp_path)
    x, y = (np.concatenate(parts) for parts in zip(*records(), strict=True))
    model = initial()
    for round_number in range(1, ROUNDS + 1):
        model = train(model, (x, y), Key(SEED).child("client", "pooled", "round", round_number, "average"))
    assert gap([found], [model]) < CLOSE


def closing_key(at: int) -> Key:
    return Key(SEED).child("client", NAMES[at], "closing")


def test_fedrep_closes_with_a_pass_of_the_head_alone(tmp_path: Path) -> None:
    found = run("fedrep", tmp_path, closing=True, **FEDREP)
    before = averaged((*LOWEST, *MIDDLE), head_then_body)
    expected = [
        train(model, records()[at], closing_key(at), moves=TOP, epochs=3, rate=0.1) for at, model in enumerate(before)
    ]
    assert gap(found, expected) < CLOSE
    assert gap(found, before) > 100 * CLOSE


def test_fedbabu_fine_tunes_the_aggregated_model_and_not_the_clients_last_body(tmp_path: Path) -> None:
    found = run("fedbabu", tmp_path, closing=True, fine_tune_epochs=EPOCHS, fine_tune_learning_rate=RATE)
    aggregated = averaged((*LOWEST, *MIDDLE), body_alone)
    expected = [train(model, records()[at], closing_key(at)) for at, model in enumerate(aggregated)]
    assert gap(found, expected) < CLOSE
    first = averaged_once()
    own_last = [body_alone(model, at, client_key(at, ROUNDS, "average")) for at, model in enumerate(first)]
    wrong = [train(model, records()[at], closing_key(at)) for at, model in enumerate(own_last)]
    assert gap(found, wrong) > 100 * CLOSE


def averaged_once() -> list[Model]:
    """FedBABU's models after the first round's average."""
    models = [body_alone(initial(), at, client_key(at, 1, "average")) for at in (0, 1)]
    mean = weighted(models, (*LOWEST, *MIDDLE))
    return [{**model, **mean} for model in models]
