"""How far the probabilities of a run's models can be believed, in `calibration.json`, for runs on frozen bodies.

Of all clients' test rows together: the plain softmax, the softmax after each client's own temperature (from its
validation rows, where it has some) and, for FedLog's head, the Laplace approximation of its posterior. And how well a
score tells records of classes that a client never saw from its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedlog.core.calibration import ReliabilityBin, calibration_error, fit_temperature, log_loss, novelty, reliability
from fedlog.core.classification import area_under_curve
from fedlog.core.heads.gaussian import ABSENT
from fedlog.core.laplace import LaplaceHead
from fedlog.data.federation import Records
from fedlog.engine.simulate.simulator import Simulation
from fedlog.experiments.run import records
from fedlog.files.json_text import write_json
from fedlog.models.body import HEAD, Params, logits
from fedlog.models.weights_file import weights_name

CALIBRATION = "calibration.json"
SOFTMAX, TEMPERATURE, LAPLACE = "softmax", "temperature", "laplace"
STRANGERS = 200  # records of unseen classes that each client is shown
FEDLOG_HEADS = ("fedlog-once", "fedlog")


@dataclass(frozen=True)
class Believability:
    """One way to make probabilities of the models' outputs, judged on all test rows."""

    records: int
    accuracy: float
    calibration_error: float
    log_loss: float
    reliability: list[ReliabilityBin]


@dataclass(frozen=True)
class RunCalibration:
    """The ways by name, and the score for classes never seen: its area under the ROC curve, mean over clients."""

    ways: dict[str, Believability]
    auroc_of_unseen_classes: float | None  # None where every client has every class
    clients_with_unseen_classes: int

    @staticmethod
    def read(folder: Path) -> RunCalibration | None:
        """The calibration in a run's folder; None where the run noted none."""
        return records.read_as(folder / CALIBRATION, RunCalibration, "the calibration")


def write_calibration(folder: Path, models: Path, simulation: Simulation) -> None:
    """Judge the clients' finished models and write the figures; no guarantee would cover those of a private run."""
    federation = simulation.federation
    if simulation.protection is not None or federation.number is not None:
        return
    found = _judge(simulation, models)
    if found is not None:
        write_json(folder / CALIBRATION, asdict(found))


def _judge(simulation: Simulation, models: Path) -> RunCalibration | None:
    outputs: dict[str, list[tuple[Tensor, Tensor]]] = {}
    areas: list[float] = []
    for at, shard in enumerate(simulation.federation.shards):
        weights = models / weights_name(shard.name)
        if not weights.exists():
            return None  # all clients share one model, which is not theirs
        client = _Client(simulation, at, load_file(weights))
        for name, values in client.outputs():
            outputs.setdefault(name, []).append((values, client.test.labels))
        area = client.area_of_unseen_classes()
        areas += [] if area is None else [area]
    # A way that some client does not have is left out: all are judged on the same rows.
    whole = {name: parts for name, parts in outputs.items() if len(parts) == len(simulation.federation.shards)}
    ways = {name: _judge_probabilities(parts) for name, parts in whole.items()}
    return RunCalibration(ways, float(np.mean(areas)) if areas else None, len(areas))


def _judge_probabilities(parts: list[tuple[Tensor, Tensor]]) -> Believability:
    values, labels = (torch.cat([part[at] for part in parts]) for at in (0, 1))
    return Believability(
        records=len(labels),
        accuracy=float((values.argmax(1) == labels).double().mean()),
        calibration_error=calibration_error(values, labels),
        log_loss=log_loss(values, labels),
        reliability=reliability(values, labels),
    )


class _Client:
    """One client's model and held-out rows."""

    def __init__(self, simulation: Simulation, at: int, params: Params) -> None:
        federation, shard = simulation.federation, simulation.federation.shards[at]
        self._simulation, self._body, self._params = simulation, simulation.bodies[at], params
        self._plain = replace(federation.transform, crop_padding=0, flip=False)
        self._seen = torch.bincount(federation.train.labels[shard.train], minlength=federation.n_class) > 0
        self.test = federation.test.at(shard.test)
        self._features = self._compute_features(self.test)
        self._validation = federation.train.at(shard.validation)

    def _compute_features(self, rows: Records) -> Tensor:
        with torch.no_grad():
            return self._body.features(self._params, self._plain.prepare(rows.inputs), None).double()

    def _logits(self, features: Tensor) -> Tensor:
        return logits(features, {name: value.double() for name, value in self._params.items()})

    def outputs(self) -> Iterator[tuple[str, Tensor]]:
        """The test rows' logits (n, n_class), by the way they were made."""
        plain = self._logits(self._features)
        yield SOFTMAX, plain
        if len(self._validation):
            held = self._logits(self._compute_features(self._validation))
            yield TEMPERATURE, plain / fit_temperature(held, self._validation.labels)
        if self._simulation.algorithm.name in FEDLOG_HEADS:
            nu = self._simulation.algorithm.observe(self._simulation.server.state).get("records", 0.0) + 1
            absent = self._params[HEAD][:, 0] <= ABSENT
            head = self._simulation.server.state[HEAD] if bool(absent.any()) else self._params[HEAD]
            chances = LaplaceHead(head.double(), nu).probabilities(self._features)
            yield LAPLACE, torch.where(absent, -1e30, chances.clamp_min(1e-300).log())

    def area_of_unseen_classes(self) -> float | None:
        """How well the score tells records of classes that this client never saw from its own test rows."""
        federation = self._simulation.federation
        strange = (~self._seen[federation.test.labels]).nonzero()[:, 0]
        own = self._seen[self.test.labels]
        if not len(strange) or not bool(own.any()):
            return None
        features = [
            self._features[own],
            self._compute_features(federation.test.at(strange[:: -(-len(strange) // STRANGERS)])),
        ]
        score = torch.cat([self._score(each) for each in features]).numpy()
        marks = np.repeat([False, True], [len(each) for each in features])
        return area_under_curve(score, marks)

    def _score(self, features: Tensor) -> Tensor:
        """How strange each record is: by FedLog's own density for its head, else by how low all logits are."""
        values = self._logits(features)
        if self._simulation.algorithm.name in FEDLOG_HEADS:
            return novelty(values, features)
        return -torch.logsumexp(values, dim=1)
