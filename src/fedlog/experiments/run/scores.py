"""Score every client's final model on its validation rows and on its test rows; the scores go to `scores.json`.

A run usually records only one of the two accuracies after each round. A comparison needs both: it decides by validation
rows and confirms with test rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedlog.core.calibration import compute_calibration_error
from fedlog.core.classification import compute_metrics
from fedlog.data.catalog import hold_out_validation, load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation, Records
from fedlog.experiments.run import records
from fedlog.experiments.run.callbacks import Callback, RunStart
from fedlog.experiments.run.client_files import CLIENTS, GEOMETRY
from fedlog.experiments.run.execute import MODELS, execute
from fedlog.experiments.run.probability_calibration import CALIBRATION
from fedlog.experiments.run.records import Summary
from fedlog.files.json_text import write_json
from fedlog.models.model import Model
from fedlog.models.model_folder import load_models
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec

SCORES = "scores.json"
PAGE_FILES = (CLIENTS, GEOMETRY, SCORES, CALIBRATION)  # files that are only used for the page of a run
SECONDS_BETWEEN_CHECKPOINTS = 30.0  # an interrupted run loses at most this much; short runs write no checkpoint


@dataclass(frozen=True)
class ClientScore:
    """The scores of one client's model on its validation or test rows; an undefined score is None.

    `right` has a digit for each row: 1 if the model is right, else 0. `places` are positions in the site's file.
    """

    rows: int
    accuracy: float | None
    balanced_accuracy: float | None
    macro_f1: float | None
    auroc: float | None
    calibration_error: float | None
    right: str  # one digit a row: 1 if the model is right, else 0
    classes: list[int] | None = None  # the class of each row
    places: list[int] | None = None  # each row in the site's file, if known; below 0: shared by all sites
    groups: list[int] | None = None  # the group of each row, if rows belong together


@dataclass(frozen=True)
class RunScores:
    """Every client's scores on validation and on test rows, and how many rows of each class it trains on."""

    validation: dict[str, ClientScore]
    test: dict[str, ClientScore]
    training: dict[str, list[int]]

    def find_scores_on(self, part: str) -> Mapping[str, ClientScore]:
        """Return every client's scores on one part of its rows, `validation` or `test`."""
        return {"validation": self.validation, "test": self.test}[part]

    def write(self, folder: Path) -> None:
        """Write the scores into the run's folder."""
        write_json(folder / SCORES, asdict(self))

    @staticmethod
    def read(folder: Path) -> RunScores | None:
        """Read the scores from a run's folder; None if it has no `scores.json`."""
        return records.read_json_file_as(folder / SCORES, RunScores, "the scores")


def execute_and_score(
    spec: RunSpec,
    folder: Path,
    callbacks: Sequence[Callback] = (),
    federation: Federation | None = None,
    load: Callable[[DataSpec], Federation] = load_federation,
) -> Summary:
    """Run the specification in the folder, score its models, and return the summary; skip what is already done."""
    seen = _FederationKeeper()
    summary = execute(
        spec,
        folder,
        [seen, *callbacks],
        federation=federation,
        seconds_between_checkpoints=SECONDS_BETWEEN_CHECKPOINTS,
        load=load,
    )
    if RunScores.read(folder) is None:
        data = resolve(spec, federation).data
        found = seen.found or (load_federation(data) if federation is None else hold_out_validation(federation, data))
        score_models(found, load_models(folder / MODELS)).write(folder)
    return summary


class _FederationKeeper(Callback):
    """A callback that remembers the federation of a run, so that scoring need not load the data again."""

    found: Federation | None = None

    def run_began(self, start: RunStart) -> None:
        """Remember the federation, unless the run has replaced its records by features."""
        if not start.run.spec.body_training:
            self.found = start.simulation.federation


def score_models(federation: Federation, models: Mapping[str, Model]) -> RunScores:
    """Score each client's model on the client's validation rows and on its test rows."""
    found: dict[str, dict[str, ClientScore]] = {"validation": {}, "test": {}}
    training = {}
    for shard in federation.shards:
        parts = {"validation": federation.train.at(shard.validation), "test": federation.test.at(shard.test)}
        for part, rows in parts.items():
            inputs = replace(rows, inputs=federation.transform.prepare(rows.inputs))
            found[part][shard.name] = score_model(models[shard.name], inputs)
        counts = torch.bincount(federation.train.labels[shard.train], minlength=federation.n_class)
        training[shard.name] = counts.tolist()
    return RunScores(found["validation"], found["test"], training)


def score_model(model: Model, rows: Records) -> ClientScore:
    """Score one model on these rows; their inputs are already prepared for the model's body."""
    if not len(rows):
        return ClientScore(0, None, None, None, None, None, "")
    chances = model.probabilities(rows.inputs)
    labels = rows.labels.numpy()
    found = compute_metrics(chances.numpy().astype(np.float64), labels)
    right = chances.argmax(1).numpy() == labels
    return ClientScore(
        rows=len(rows),
        accuracy=found.accuracy,
        balanced_accuracy=found.balanced_accuracy,
        macro_f1=found.macro_f1,
        auroc=found.auroc,
        calibration_error=compute_calibration_error(chances.clamp_min(1e-38).log(), rows.labels),
        right="".join("1" if each else "0" for each in right),
        classes=rows.labels.tolist(),
        places=None if rows.rows is None else rows.rows.tolist(),
        groups=None if rows.users is None else rows.users.tolist(),
    )
