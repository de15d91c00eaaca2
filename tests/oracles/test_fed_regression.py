"""Predicting a number: against a solution by hand, in runs, through predict, over Flower's messages, private or not."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from scipy.stats import t as student
from sklearn.linear_model import LinearRegression
from three_sites import InProcess, quick_clock

import fedlog
from fedlog.cli.main import main
from fedlog.core.heads.regression import NumberHead, solve_regression, sum_regression_moments
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.data.public_tables import NUMBER_TABLES
from fedlog.data.schema import Schema, dump_schema, parse_schema
from fedlog.engine.protocol import checkpoint
from fedlog.errors import InputError
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.ops.run import remove_site
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.models.body import HEAD
from fedlog.models.model_folder import load_model
from fedlog.settings.promise import Promise
from fedlog.testing.trial import convert_to_regression

SCHEMA = NUMBER_TABLES["diabetes"].schema
NAMES = ("east", "north", "south")


def draw(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = Key(seed).torch()
    x = torch.randn(rows, 3, dtype=torch.float64, generator=generator) * torch.tensor([1.0, 10.0, 0.1]) + 5
    return x, x @ torch.tensor([0.3, -0.02, 2.0], dtype=torch.float64) + 0.1 * torch.randn(rows, generator=generator)


def test_without_a_prior_it_is_least_squares_with_its_textbook_intervals() -> None:
    x, y = draw(60)
    head = NumberHead.from_posterior(solve_regression(sum_regression_moments(x, y), strength=1e-12))
    plain = LinearRegression().fit(x, y)
    new = torch.from_numpy(np.array([[5.0, 5.0, 5.0], [8.0, -20.0, 4.9]]))
    torch.testing.assert_close(head.predict(new)[0], torch.from_numpy(plain.predict(new)), rtol=1e-7, atol=1e-7)
    # s * sqrt(1 + x0' (X'X)^-1 x0); the prior of the noise counts as one record more, of almost no residual.
    design, row = np.column_stack([np.ones(60), x]), np.column_stack([np.ones(2), new])
    residual = float(((y.numpy() - plain.predict(x)) ** 2).sum())
    scale = np.sqrt(residual / 60 * (1 + np.einsum("ij,jk,ik->i", row, np.linalg.inv(design.T @ design), row)))
    reach = student.ppf(0.95, 60) * scale
    low, high = head.predict_interval(new, 0.9)
    np.testing.assert_allclose(((high - low) / 2).numpy(), reach, rtol=2e-3)


def test_the_head_survives_float32_and_features_without_spread() -> None:
    x, y = draw(60)
    flat = torch.cat([x, torch.full((60, 1), 7.0), torch.zeros(60, 1)], dim=1)
    whole = NumberHead.from_posterior(solve_regression(sum_regression_moments(x, y), strength=0.1))
    head = NumberHead.from_posterior(solve_regression(sum_regression_moments(flat, y), strength=0.1))
    sent = NumberHead(*(array.to(torch.float32) for array in head.arrays))
    for ours, theirs in zip(sent.predict_interval(flat, 0.9), whole.predict_interval(x, 0.9), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_run_solves_what_all_rows_in_one_place_give(tmp_path: Path) -> None:
    federation = Federation.named("diabetes")
    result = fedlog.run(federation, method="fed-regression", body="identity", out=tmp_path / "run")
    train = federation.train
    assert train.targets is not None
    pooled = NumberHead.from_posterior(solve_regression(sum_regression_moments(train.inputs, train.targets)))
    model = result.models["site-2"]
    torch.testing.assert_close(model.params[HEAD].double(), pooled.linear, rtol=1e-4, atol=1e-5)
    found = result.summary.regression
    assert found is not None
    assert 50 < found["rmse_mean_over_clients"] < 60
    assert found["inside_mean_over_clients"] == pytest.approx(result.accuracy)
    assert 0.8 < result.accuracy < 1


def test_predict_gives_numbers_with_their_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["run", "--data", "diabetes", "--method", "fed-regression", "--out", str(out), "--quiet"]) == 0
    columns = NUMBER_TABLES["diabetes"].read()
    frame = pl.DataFrame(columns)
    frame.drop("progression").write_csv(tmp_path / "new.csv")
    capsys.readouterr()
    assert main(["predict", str(out / "models" / "site-0"), "--data", str(tmp_path / "new.csv")]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    truth = columns["progression"]
    inside = [float(row["low"]) <= y <= float(row["high"]) for row, y in zip(rows, truth, strict=True)]
    assert 0.85 < np.mean(inside) < 0.95
    guesses = np.array([float(row["progression"]) for row in rows])
    assert np.corrcoef(guesses, truth)[0, 1] > 0.6
    assert "This run predicts a number" in (out / "report.html").read_text()
    summary = json.loads((out / "summary.json").read_text())
    assert set(summary["regression"]) >= {"rmse_per_client", "inside_per_client", "interval_level"}
    with pytest.raises(InputError, match="predicts a number, not classes"):
        load_model(out / "models" / "site-0").predict_proba(tmp_path / "new.csv")


@pytest.mark.parametrize("trust", ["central", "local", "distributed"])
def test_a_private_run_adds_noise_for_features_and_number_together(tmp_path: Path, trust: str) -> None:
    federation = Federation.named("diabetes")
    asked: dict[str, Any] = {"privacy": "record", "delta": 1e-5, "clip": "l2:1", "trust": trust}
    spread = []
    for epsilon in (20.0, 0.5):
        result = fedlog.run(
            federation, method="fed-regression", body="identity+scale:0.316", epsilon=epsilon, **asked,
            out=tmp_path / f"{trust}-{epsilon:g}",
        )  # fmt: skip
        assert result.summary.regression is not None
        spread.append(result.summary.regression["rmse_mean_over_clients"])
    assert spread[0] < 66 < spread[1]  # 56 without noise, 77 for the mean of all


def test_the_number_is_bounded_with_the_features() -> None:
    promise = Promise("record", "central", 1.0, 1e-5, clip="l2:2")  # type: ignore[arg-type]
    guard = Plan("r", method="fed-regression", rounds=1, promise=promise).build_protection(1, 4)
    assert guard is not None
    # A record of length 2 with its number at 1: (1, 5^0.5, 5) in count, sums and second moments.
    assert guard.mechanism.sensitivity == pytest.approx((1 + 5 + 25) ** 0.5)


def test_methods_and_labels_must_fit(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="method fed-lda predicts classes, but the label of the data is a number"
    ) as refused:
        fedlog.run(Federation.named("diabetes"), method="fed-lda", body="identity", out=tmp_path / "a")
    assert "fed-regression" in str(refused.value.hint)
    with pytest.raises(
        InputError, match="method fed-regression predicts a number, but the labels of the data are classes"
    ):
        fedlog.run(Federation.named("digits"), method="fed-regression", body="mlp:8", out=tmp_path / "b")


def test_a_schema_keeps_its_ranges() -> None:
    text = dump_schema(SCHEMA)
    assert parse_schema(text, "test") == SCHEMA
    other = replace(SCHEMA, target_range=(0.0, 400.0))
    assert other.digest != SCHEMA.digest
    broken = {
        "other = 3": "neither",
        'range = [0, 350]\nvalues = ["a", "b"]': "both",
        "range = [350, 0]": "two numbers",
        "range = [0, true]": "two numbers",
        "range = [0, inf]": "two numbers",
    }
    for entry, said in broken.items():
        text = dump_schema(SCHEMA).replace("range = [0.0, 350.0]", entry, 1)
        with pytest.raises(InputError, match="found: other" if "other" in entry else said):
            parse_schema(text, "test")


def test_a_draft_for_a_number_has_ranges(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pl.DataFrame(NUMBER_TABLES["diabetes"].read()).write_csv(tmp_path / "d.csv")
    assert main(["federate", "schema", str(tmp_path / "d.csv"), "--label", "progression", "--number"]) == 0
    drafted: Schema = parse_schema(capsys.readouterr().out, "draft")
    assert drafted.target_range == (25.0, 346.0)
    assert drafted.features[0].range == (19.0, 79.0)


def test_arrays_with_a_number_are_a_federation(tmp_path: Path) -> None:
    x, y = (part.numpy() for part in draw(90))
    sites = {"a": (x[:60], y[:60]), "b": (x[60:], y[60:])}
    for test in (None, (x[:10], y[:10])):
        federation = Federation.from_arrays(sites, test, number=(-10, 20))
        result = fedlog.run(federation, method="fed-regression", body="identity", out=tmp_path / f"{test is None}")
        guess, (low, high) = result.models["a"].predict(x), result.models["a"].predict_interval(x)
        assert np.corrcoef(guess, y)[0, 1] > 0.9
        assert ((low < guess) & (guess < high)).all()
    with pytest.raises(InputError, match="expected labels that are numbers"):
        Federation.from_arrays({"a": (x, y.astype(str))}, number=(0, 1))


@pytest.fixture
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message takes its run and its sender from the process it is made in; here that is no Flower process."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def fill_sites(tmp_path: Path, body: str = "identity") -> InProcess:
    columns = pl.DataFrame(NUMBER_TABLES["diabetes"].read())
    folders = {}
    for name, rows in zip(NAMES, np.split(np.arange(442), [260, 390]), strict=True):
        folder = SiteFolder(tmp_path / name)
        folder.path.mkdir()
        folder.schema_file.write_text(dump_schema(SCHEMA))
        columns[rows.tolist()].write_csv(folder.path / "data.csv")
        folder.write_config(SiteConfig(name, "127.0.0.1:1", str(folder.path / "data.csv"), body))
        folders[name] = folder
    return InProcess(folders)


def conduct(tmp_path: Path, post: InProcess, plan: Plan) -> tuple[ServerFolder, checkpoint.ServerState]:
    server = ServerFolder(tmp_path / "server")
    server.path.mkdir()
    server.schema_file.write_text(dump_schema(SCHEMA))
    Run(post, server, SCHEMA, plan, RoundRules(2, 20.0), quick_clock()).conduct()
    return server, checkpoint.read(RunFolder.of_run(server, plan.name).checkpoint, lambda _: None)


@pytest.mark.usefixtures("_inside_a_run")
def test_over_flowers_messages_the_head_is_that_of_all_rows_and_after_leaving_of_the_others(tmp_path: Path) -> None:
    post = fill_sites(tmp_path)
    server, found = conduct(tmp_path, post, Plan("once", method="fed-regression", rounds=1))
    model = load_model(post.sites["south"].models / "once")
    assert model.predict(post.sites["south"].path / "data.csv").shape == (52,)
    reported = json.loads((RunFolder.of_run(server, "once").path / "report.json").read_text())["sites"]
    assert {"rmse", "federated_rmse", "local_only_rmse"} <= set(reported[0])
    from fedlog.flower.site.data import load_data

    rows = {name: load_data(folder, folder.read_config()).federation for name, folder in post.sites.items()}

    def solve(names: tuple[str, ...]) -> torch.Tensor:
        x = torch.cat([rows[name].train.at(rows[name].shards[0].train).inputs for name in names])
        y = torch.cat([rows[name].train.targets[rows[name].shards[0].train] for name in names])  # type: ignore[index]
        return NumberHead.from_posterior(solve_regression(sum_regression_moments(x, y))).linear

    torch.testing.assert_close(found.values[HEAD], solve(NAMES), rtol=1e-4, atol=1e-5)
    remove_site(server, "south", "once", lambda _: None)
    after = checkpoint.read(RunFolder.of_run(server, "once").checkpoint, lambda _: None)
    torch.testing.assert_close(after.values[HEAD], solve(NAMES[:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_inside_a_run")
def test_over_flowers_messages_in_private(tmp_path: Path) -> None:
    post = fill_sites(tmp_path, "identity+scale:0.316")
    promise = Promise("record", "central", 8.0, 1e-5, clip="l2:1")  # type: ignore[arg-type]
    server, found = conduct(tmp_path, post, Plan("private", method="fed-regression", rounds=1, promise=promise))
    assert torch.isfinite(found.values[HEAD]).all()
    report = json.loads((RunFolder.of_run(server, "private").path / "report.json").read_text())
    assert all(set(site) == {"name", "body"} for site in report["sites"])
    assert report["privacy"]["releases"] == 1


def test_the_contracts_federation_has_numbers(make_federation: Any) -> None:
    federation = convert_to_regression(make_federation([4, 5]))
    assert federation.target_range == (-4.0, 4.0)
    assert federation.content_digest() != make_federation([4, 5]).content_digest()
