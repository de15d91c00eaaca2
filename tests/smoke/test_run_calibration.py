"""A run on a frozen body measures how reliable its probabilities are, and the report draws it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedlog
from fedlog.core.calibration import compute_calibration_error, compute_log_loss, fit_temperature
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.errors import InputError
from fedlog.experiments.run.probability_calibration import CALIBRATION, RunCalibration


def clusters() -> Federation:
    """Three classes that overlap; each of three sites has two of them."""
    generator = Key(2).numpy()
    sites = {}
    for at in range(3):
        labels = np.repeat([at, (at + 1) % 3], 60)
        sites[f"s{at}"] = (generator.normal(size=(120, 4)) + 1.2 * np.eye(3, 4)[labels], labels)
    return Federation.from_arrays(sites)


def run(tmp_path: Path, method: str, **options: Any) -> tuple[fedlog.Result, RunCalibration]:
    result = fedlog.run(clusters(), method=method, body="identity", out=tmp_path / method, **options)
    found = RunCalibration.read(tmp_path / method)
    assert found is not None
    return result, found


def test_the_figures_are_those_of_the_models_on_their_test_rows(tmp_path: Path) -> None:
    result, found = run(tmp_path, "fedlog-once", options={"classes": "own"})
    assert set(found.ways) == {"softmax", "temperature", "laplace"}
    federation = clusters()
    logs, marks = [], []
    for shard in federation.shards:
        rows = federation.test.at(shard.test)
        logs.append(result.models[shard.name].probabilities(rows.inputs).double().clamp_min(1e-300).log())
        marks.append(rows.labels)
    values, labels = torch.cat(logs), torch.cat(marks)
    plain = found.ways["softmax"]
    assert plain.records == len(labels) == sum(part.records for part in plain.reliability)
    assert plain.calibration_error == pytest.approx(compute_calibration_error(values, labels), abs=1e-5)
    assert plain.log_loss == pytest.approx(compute_log_loss(values, labels), rel=1e-4)
    assert plain.accuracy == pytest.approx(found.ways["temperature"].accuracy)
    assert found.ways["temperature"].log_loss < plain.log_loss + 0.05
    assert found.clients_with_unseen_classes == 3
    assert found.auroc_of_unseen_classes is not None
    assert 0.4 < found.auroc_of_unseen_classes <= 1


def test_other_heads_have_no_laplace_approximation_and_private_runs_no_figures(tmp_path: Path) -> None:
    _, found = run(tmp_path, "fed-lda")
    assert set(found.ways) == {"softmax", "temperature"}
    inputs = Key(3).numpy().normal(size=(3, 40, 4))
    federation = Federation.from_arrays(
        {name: (own, np.arange(40) % 2) for name, own in zip("abc", inputs, strict=True)}, rows_alone=True
    )
    fedlog.run(
        federation, method="fed-ncm", body="identity", out=tmp_path / "private", privacy="record", epsilon=1.0,
        delta=1e-5, clip="l2:1",
    )  # fmt: skip
    assert RunCalibration.read(tmp_path / "private") is None
    (tmp_path / "private" / CALIBRATION).write_text(json.dumps({"ways": 3}))
    with pytest.raises(InputError, match="cannot read the calibration of a run"):
        RunCalibration.read(tmp_path / "private")


def test_a_few_rows_without_a_mistake_do_not_make_a_model_certain() -> None:
    logits = torch.tensor([[2.0, 0.0]] * 6, dtype=torch.float64)
    labels = torch.zeros(6, dtype=torch.int64)
    # Platt: seven of eight are right, and so the odds at this margin are seven to one.
    assert fit_temperature(logits, labels) == pytest.approx(2 / np.log(7), rel=1e-2)
    absent = torch.cat([logits, torch.full((6, 1), -3e38, dtype=torch.float64)], dim=1)
    assert fit_temperature(absent, labels) == pytest.approx(fit_temperature(logits, labels), rel=1e-3)
