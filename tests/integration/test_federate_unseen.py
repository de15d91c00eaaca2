"""Predictions of a site for classes that it never saw, and its figures over few rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from flwr.supercore.task_identity import TaskIdentity
from scipy.stats import binom
from three_sites import BODIES, SCHEMA, InProcess, fill_site, make_server, quick_clock

from fedlog.cli.federate_report import print_report
from fedlog.cli.main import main
from fedlog.core.classification import compute_metrics, compute_wilson_interval
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.event_text import describe_site_event
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.settings.promise import Promise

RECORDS = Promise("record", "local", 50.0, 1e-5, clip="l2:3")


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def post(tmp_path: Path) -> InProcess:
    made = InProcess({name: fill_site(SiteFolder(tmp_path / name), name, "mlp:8") for name in BODIES})
    table = tmp_path / "east" / "data.csv"
    pl.read_csv(table).filter(pl.col("y") != "label-two").write_csv(table)
    return made


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    return make_server(ServerFolder(tmp_path / "server"))


@pytest.mark.parametrize("promise", [None, RECORDS])
def test_a_class_that_a_site_never_saw_is_named_where_its_model_is_used(
    post: InProcess, server: ServerFolder, promise: Promise | None, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan("trial", rounds=1, promise=promise)
    Run(post, server, SCHEMA, plan, RoundRules(2, 20.0), quick_clock()).conduct()
    east, north = post.sites["east"], post.sites["north"]
    assert json.loads((east.models / "trial" / "report.json").read_text())["unseen_classes"] == ["label-two"]
    assert json.loads((north.models / "trial" / "report.json").read_text())["unseen_classes"] == []
    described = json.loads((east.models / "trial" / "model.json").read_text())["provenance"]
    # Where records are protected, which classes they have does not go with the model.
    assert described.get("unseen_classes") == (None if plan.promise is not None else ["label-two"])
    finished = next(e for e in read_events(east.event_log) if e["event"] == "finished")
    assert finished["unseen_classes"] == 1
    assert "1 class of the schema is not in this site's training rows" in str(describe_site_event(finished))
    assert "label-two" not in east.event_log.read_text()
    capsys.readouterr()
    data = str(north.path / "data.csv")
    assert main(["predict", str(east.models / "trial"), "--data", data]) == 0
    assert "no training row of this model's site had label-two" in capsys.readouterr().err
    assert main(["predict", str(east.models / "trial"), "--data", data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unseen_classes"] == ["label-two"]
    assert main(["predict", str(north.models / "trial"), "--data", data]) == 0
    assert capsys.readouterr().err == ""


def test_a_balanced_figure_over_one_class_is_none() -> None:
    sure = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    one = compute_metrics(sure, np.zeros(3, dtype=np.int64))
    assert (one.accuracy, one.balanced_accuracy, one.auroc, one.classes) == (1.0, None, None, 1)
    two = compute_metrics(sure, np.array([0, 0, 1]))
    assert two.balanced_accuracy == 0.5
    assert two.classes == 2
    assert two.accuracy_interval == compute_wilson_interval(2 / 3, 3)


@pytest.mark.parametrize("records", [6, 30, 300])
def test_the_interval_of_an_accuracy_holds_as_often_as_it_says(records: int) -> None:
    """Exactly, from the binomial distribution; Wilson's interval is right on average over the true share."""
    ends = np.array([compute_wilson_interval(right / records, records) for right in range(records + 1)])
    truths = np.linspace(0.02, 0.98, 97)
    held = [
        binom.pmf(np.flatnonzero((ends[:, 0] <= truth) & (truth <= ends[:, 1])), records, truth).sum()
        for truth in truths
    ]
    assert 0.93 < np.mean(held) < 0.975
    assert min(held) > 0.82
    low, high = compute_wilson_interval(1.0, records)
    assert high == pytest.approx(1.0)
    assert low < 1


def test_a_table_over_six_rows_carries_its_interval(
    post: InProcess, server: ServerFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    Run(post, server, SCHEMA, Plan("trial", rounds=1), RoundRules(2, 20.0), quick_clock()).conduct()
    report = RunFolder.of_run(server, "trial").read_report()
    assert report is not None
    report["sites"] = [{**site, "accuracy": 5 / 6, "test_records": 6} for site in report["sites"]]
    print_report(report, as_json=False)
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert "95 % interval" in head
    assert "0.436 to 0.970" in first
    kept = json.loads((post.sites["north"].models / "trial" / "report.json").read_text())
    low, high = kept["federated"]["test"]["accuracy_interval"]
    assert low < kept["federated"]["test"]["accuracy"] <= high + 1e-9
    finished = next(e for e in read_events(post.sites["north"].event_log) if e["event"] == "finished")
    assert f"over {finished['test_records']} rows" in str(describe_site_event(finished))
