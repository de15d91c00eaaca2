"""The defaults of the paper's data sets are those of its tables A.2 to A.4."""

from __future__ import annotations

from typing import Any

import pytest

from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec

JOINT = ("fedlog", "fedlog-c", "fedavg", "lg-fedavg-1", "lg-fedavg-2", "fedper", "fedbabu", "fedproto", "feddbe")
# data set: rounds, batch size, epochs, learning rate; FedRep's epochs of the head; CS-FL's own.
TABLES: dict[str, tuple[int, int, int, float, int, dict[str, Any]]] = {
    "mnist": (100, 10, 5, 0.001, 10, {"batch": 10, "epochs": 5, "rates": (0.001, 0.001), "kept": 0.005, "to": 0.1}),
    "cifar10": (100, 50, 1, 0.0005, 10, {"batch": 10, "epochs": 1, "rates": (0.001, 0.01), "kept": 0.0005, "to": 0.2}),
    "cifar100": (150, 50, 3, 0.0005, 3, {"batch": 10, "epochs": 1, "rates": (0.001, 0.01), "kept": 0.0005, "to": 0.1}),
}


@pytest.mark.parametrize("data", TABLES)
def test_presets_are_the_papers(data: str) -> None:
    rounds, batch, epochs, rate, head_epochs, sensing = TABLES[data]
    for method in (*JOINT, "fedrep", "local"):
        spec = resolve(RunSpec(method=method, data=data)).spec
        assert (spec.rounds, spec.batch_size) == (rounds, batch)
        assert (spec.options["epochs"], spec.options["learning_rate"]) == (epochs, rate)
    assert resolve(RunSpec(method="fedrep", data=data)).spec.options["head_epochs"] == head_epochs
    csfl = resolve(RunSpec(method="cs-fl", data=data)).spec
    assert (csfl.batch_size, csfl.options["epochs"]) == (sensing["batch"], sensing["epochs"])
    assert (csfl.options["phase_1_rate"], csfl.options["phase_2_rate"]) == sensing["rates"]
    assert (csfl.options["threshold"], csfl.options["reduction"]) == (sensing["kept"], sensing["to"])


@pytest.mark.parametrize(("data", "clients", "classes"), [("mnist", 50, 2), ("cifar10", 100, 2), ("cifar100", 100, 10)])
def test_the_federations_are_the_papers(data: str, clients: int, classes: int) -> None:
    spec = resolve(RunSpec(data=data)).spec
    assert (spec.clients, spec.classes_per_client) == (clients, classes)
    assert spec.train_records == (3000 if data == "mnist" else None)
