"""Predicting a number on real processes: the head of all sites from one exchange, with and without privacy."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from fedlog.cli.main import main
from fedlog.core.heads.regression import NumberHead, solve_regression, sum_regression_moments
from fedlog.data.public_tables import NUMBER_TABLES
from fedlog.engine.protocol import checkpoint
from fedlog.flower.ops.demo import write_rosters
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite
from fedlog.flower.protocol.plan import Plan, make_plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.flower.site.data import load_data
from fedlog.models.body import HEAD
from fedlog.settings.spec import RunSpec

pytestmark = pytest.mark.slow

TABLE = NUMBER_TABLES["diabetes"]
SCALE = 0.316  # brings most rows to length 1 and below, so that the clip of the private run cuts little
ENDS = {"east": (0, 260), "north": (260, 390), "south": (390, 442)}
METHOD = "fed-regression"


def solve_pooled(federation: LocalFederation) -> torch.Tensor:
    """The head of all sites' training rows in one place."""
    features, numbers = [], []
    for folder in federation.sites.values():
        found = load_data(folder, folder.read_config()).federation
        rows = found.shards[0].train
        assert found.train.targets is not None
        features.append(found.train.at(rows).inputs * SCALE)
        numbers.append(found.train.targets[rows])
    moments = sum_regression_moments(torch.cat(features), torch.cat(numbers))
    return NumberHead.from_posterior(solve_regression(moments)).linear


def private_plan() -> Plan:
    asked = RunSpec(method=METHOD, privacy="record", epsilon=8.0, delta=1e-5, clip="l2:1", trust="distributed")  # type: ignore[arg-type]
    return make_plan(asked, "private", lambda: len(ENDS))


def test_three_real_sites_predict_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = pl.DataFrame(TABLE.read())
    sites = {}
    for name, (start, end) in ENDS.items():
        columns[start:end].write_csv(tmp_path / f"{name}.csv")
        sites[name] = LocalSite(tmp_path / f"{name}.csv", f"identity+scale:{SCALE}")
    (tmp_path / "federation").mkdir()
    federation = LocalFederation.create(tmp_path / "federation", TABLE.schema, sites)
    write_rosters(federation)
    plain = Plan("plain", method=METHOD, rounds=1)
    in_the_open, private = federation.run_plans([plain, private_plan()], lambda line: None)

    found = {
        name: checkpoint.read(RunFolder.of_run(federation.server, name).checkpoint, lambda _: None).values[HEAD]
        for name in ("plain", "private")
    }
    pooled = solve_pooled(federation)
    torch.testing.assert_close(found["plain"], pooled, rtol=1e-4, atol=1e-5)
    assert in_the_open.report["rounds"] == 1
    # 77 is the spread of the number; the smallest site has few test rows, so only everyone's mean is held to it.
    errors = {site["name"]: site["federated_rmse"] for site in in_the_open.report["sites"]}
    assert set(errors) == set(ENDS)
    assert np.mean(list(errors.values())) < 77, errors

    # In private the server saw a noisy sum alone: no upload, no site's figures, another head.
    assert RunFolder.of_run(federation.server, "private").read_uploads() == {}
    assert private.report["privacy"]["releases"] == 1
    assert private.report["privacy"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert all(set(site) == {"name", "body"} for site in private.report["sites"])
    assert torch.isfinite(found["private"]).all()
    assert not torch.allclose(found["private"], pooled, rtol=1e-4, atol=1e-5)
    kept = json.loads((federation.sites["east"].models / "private" / "report.json").read_text())
    assert kept["federated"]["test"]["rmse"] < 90

    # A site scales its columns by its own rows, so its intervals are held to these; the largest has 260 of them.
    start, end = ENDS["east"]
    own = columns[start:end]
    own.drop("progression").write_csv(tmp_path / "new.csv")
    capsys.readouterr()
    model = federation.sites["east"].models / "plain"
    assert main(["predict", str(model), "--data", str(tmp_path / "new.csv"), "--level", "0.9"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    pairs = zip(rows, own["progression"].to_list(), strict=True)
    assert 0.85 < np.mean([float(row["low"]) <= y <= float(row["high"]) for row, y in pairs]) < 0.95
