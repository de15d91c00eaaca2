"""FedProx and Ditto against a computation by hand."""

from __future__ import annotations

from pathlib import Path

from by_hand import CLOSE, EVERYTHING, ROUNDS, Hold, Model, client_key, gap, initial, records, run, train, weighted

MU = 3.0


def hold_near(anchor: Model, strength: float) -> Hold:
    """The gradient of strength / 2 * |w - anchor|^2."""
    return lambda model: {name: strength * (model[name] - anchor[name]) for name in EVERYTHING}


def fedprox_by_hand(mu: float) -> list[Model]:
    common = initial()
    for number in range(1, ROUNDS + 1):
        hold = hold_near(common, mu)
        models = [train(common, records()[at], client_key(at, number, "average"), hold=hold) for at in (0, 1)]
        common = weighted(models, EVERYTHING)
    return [common, common]


def ditto_by_hand(strength: float, *, near_the_new_average: bool = False) -> list[Model]:
    common, personal = initial(), [initial(), initial()]
    for number in range(1, ROUNDS + 1):
        models = [train(common, records()[at], client_key(at, number, "average")) for at in (0, 1)]
        average = weighted(models, EVERYTHING)
        hold = hold_near(average if near_the_new_average else common, strength)
        personal = [
            train(model, records()[at], client_key(at, number, "personal"), epochs=3, rate=0.03, hold=hold)
            for at, model in enumerate(personal)
        ]
        common = average
    return personal


def test_fedprox_of_two_clients_and_two_rounds(tmp_path: Path) -> None:
    found = run("fedprox", tmp_path, mu=MU)
    assert gap(found, fedprox_by_hand(MU)) < CLOSE
    assert gap(found, fedprox_by_hand(0.0)) > 100 * CLOSE  # without the proximal term: FedAvg
    assert gap(found, fedprox_by_hand(2 * MU)) > 100 * CLOSE  # without its half


def test_ditto_of_two_clients_and_two_rounds(tmp_path: Path) -> None:
    found = run("ditto", tmp_path, regularisation=MU, personal_epochs=3, personal_learning_rate=0.03)
    assert gap(found, ditto_by_hand(MU)) < CLOSE
    assert gap(found, ditto_by_hand(0.0)) > 100 * CLOSE  # without the proximal term: local training
    assert gap(found, ditto_by_hand(MU, near_the_new_average=True)) > 100 * CLOSE  # near another model
    assert gap(found[:1], found[1:]) > 100 * CLOSE  # personal models differ
