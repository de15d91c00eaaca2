"""Measure how well calibrated the probabilities of a run's models are, and write this to `calibration.json`.

Only runs with frozen bodies have this file.

Three kinds of probabilities are measured on the test records of all clients together: the plain softmax; the softmax
after a temperature that each client fits on its validation records, if it has some; and, for FedLog's head, the Laplace
approximation of its posterior. Another value says how well a score separates records of classes that a client never saw
from records of the classes that it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedlog.core.calibration import (
    ReliabilityBin,
    bin_by_confidence,
    compute_calibration_error,
    compute_log_loss,
    compute_novelty_scores,
    fit_temperature,
)
from fedlog.core.classification import compute_area_under_curve
from fedlog.core.heads.gaussian import ABSENT
from fedlog.core.laplace import LaplaceHead
from fedlog.data.federation import Records
from fedlog.engine.simulate.simulator import Simulation
from fedlog.experiments.run import records
from fedlog.files.json_text import write_json
from fedlog.models.body import HEAD, Params, logits
from fedlog.models.weights_file import name_weights_file

CALIBRATION = "calibration.json"
SOFTMAX, TEMPERATURE, LAPLACE = "softmax", "temperature", "laplace"
UNSEEN_RECORDS = 200  # how many records of classes that it never saw each client is tested with
FEDLOG_HEADS = ("fedlog-once", "fedlog")


@dataclass(frozen=True)
class ProbabilityQuality:
    """The quality of one kind of probabilities (softmax, temperature or Laplace), measured on all test records."""

    records: int
    accuracy: float
    calibration_error: float
    log_loss: float
    reliability: list[ReliabilityBin]


@dataclass(frozen=True)
class RunCalibration:
    """The quality of a run's probabilities (in `ways`, by their kind), and how well unseen classes are recognised."""

    ways: dict[str, ProbabilityQuality]
    auroc_of_unseen_classes: float | None  # area under the ROC curve, mean over clients; None if all have every class
    clients_with_unseen_classes: int

    @staticmethod
    def read(folder: Path) -> RunCalibration | None:
        """Read `calibration.json` from a run's folder; None if there is no such file."""
        return records.read_json_file_as(folder / CALIBRATION, RunCalibration, "the calibration")


def write_calibration(folder: Path, models: Path, simulation: Simulation) -> None:
    """Measure how well calibrated the clients' finished models are, and write `calibration.json`.

    Skip runs that predict a number, and private runs, because their guarantee would not cover what the file says.
    """
    federation = simulation.federation
    if simulation.protection is not None or federation.target_range is not None:
        return
    found = _measure_calibration(simulation, models)
    if found is not None:
        write_json(folder / CALIBRATION, asdict(found))


def _measure_calibration(simulation: Simulation, models: Path) -> RunCalibration | None:
    """Measure the calibration of the clients' models; None if all clients share one model."""
    outputs: dict[str, list[tuple[Tensor, Tensor]]] = {}
    areas: list[float] = []
    for at, shard in enumerate(simulation.federation.shards):
        weights = models / name_weights_file(shard.name)
        if not weights.exists():
            return None  # the model of all clients is saved under another name
        client = _ClientModel(simulation, at, load_file(weights))
        for name, values in client.list_logits():
            outputs.setdefault(name, []).append((values, client.test.labels))
        area = client.compute_auroc_of_unseen_classes()
        areas += [] if area is None else [area]
    # A kind of probabilities that some client lacks is left out, so that all kinds are measured on the same records.
    whole = {name: parts for name, parts in outputs.items() if len(parts) == len(simulation.federation.shards)}
    ways = {name: _measure_probability_quality(parts) for name, parts in whole.items()}
    return RunCalibration(ways, float(np.mean(areas)) if areas else None, len(areas))


def _measure_probability_quality(parts: list[tuple[Tensor, Tensor]]) -> ProbabilityQuality:
    """Measure one kind of probabilities, given the logits and labels of each client's test records."""
    values, labels = (torch.cat([part[at] for part in parts]) for at in (0, 1))
    return ProbabilityQuality(
        records=len(labels),
        accuracy=float((values.argmax(1) == labels).double().mean()),
        calibration_error=compute_calibration_error(values, labels),
        log_loss=compute_log_loss(values, labels),
        reliability=bin_by_confidence(values, labels),
    )


class _ClientModel:
    """One client's final model, with the client's validation and test records."""

    def __init__(self, simulation: Simulation, client: int, params: Params) -> None:
        federation, shard = simulation.federation, simulation.federation.shards[client]
        self._simulation, self._body, self._params = simulation, simulation.bodies[client], params
        self._transform = federation.transform
        self._seen = torch.bincount(federation.train.labels[shard.train], minlength=federation.n_class) > 0
        self.test = federation.test.at(shard.test)
        self._features = self._compute_features(self.test)
        self._validation = federation.train.at(shard.validation)

    def _compute_features(self, held_out: Records) -> Tensor:
        with torch.no_grad():
            return self._body.compute_features(self._params, self._transform.prepare(held_out.inputs), None).double()

    def _compute_logits(self, features: Tensor) -> Tensor:
        return logits(features, {name: value.double() for name, value in self._params.items()})

    def list_logits(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, logits of the test records, (n, n_class)) for each kind of probabilities."""
        plain = self._compute_logits(self._features)
        yield SOFTMAX, plain
        if len(self._validation):
            held = self._compute_logits(self._compute_features(self._validation))
            yield TEMPERATURE, plain / fit_temperature(held, self._validation.labels)
        if self._simulation.algorithm.name in FEDLOG_HEADS:
            nu = self._simulation.algorithm.observe(self._simulation.server.state).get("records", 0.0) + 1
            absent = self._params[HEAD][:, 0] <= ABSENT
            head = self._simulation.server.state[HEAD] if bool(absent.any()) else self._params[HEAD]
            chances = LaplaceHead(head.double(), nu).probabilities(self._features)
            yield LAPLACE, torch.where(absent, -1e30, chances.clamp_min(1e-300).log())

    def compute_auroc_of_unseen_classes(self) -> float | None:
        """Compute the area under the ROC curve of `_score_novelty` as a detector of records of unseen classes.

        None if the client has seen every class, or has no test record of a class that it has seen.
        """
        federation = self._simulation.federation
        strange = (~self._seen[federation.test.labels]).nonzero()[:, 0]
        own = self._seen[self.test.labels]
        if not len(strange) or not bool(own.any()):
            return None
        features = [
            self._features[own],
            self._compute_features(federation.test.at(strange[:: -(-len(strange) // UNSEEN_RECORDS)])),
        ]
        score = torch.cat([self._score_novelty(each) for each in features]).numpy()
        marks = np.repeat([False, True], [len(each) for each in features])
        return compute_area_under_curve(score, marks)

    def _score_novelty(self, features: Tensor) -> Tensor:
        """Score how unusual each record is (higher is more): by FedLog's density, or by the logits of other methods."""
        values = self._compute_logits(features)
        if self._simulation.algorithm.name in FEDLOG_HEADS:
            return compute_novelty_scores(values, features)
        return -torch.logsumexp(values, dim=1)
