"""The README's example, the same from three CSV files on the command line, and the same as a deployment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_wine

import fedlog
from fedlog.cli.main import main
from fedlog.report.documents.method_results import (
    GAINS,
    OVERVIEW,
    OVERVIEW_END,
    describe_paired_gains,
    make_main_methods_table,
)

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
X, Y = load_wine(return_X_y=True)
SITES = {f"site-{at}": X[at::3] for at in range(3)}
LABELS = {f"site-{at}": Y[at::3] for at in range(3)}


def readme_lines() -> list[str]:
    """The first Python example of the README."""
    (block,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)[:1]
    return [line for line in block.splitlines() if line]


def run_readme() -> fedlog.Result:
    """Run the README's example and return its `result`."""
    names: dict[str, Any] = {}
    exec("\n".join(readme_lines()), names)
    found = names["result"]
    assert isinstance(found, fedlog.Result)
    return found


def write_tables(folder: Path) -> Path:
    """The same rows as one CSV file a site."""
    folder.mkdir()
    for name, rows in SITES.items():
        columns = {f"x{at}": rows[:, at] for at in range(rows.shape[1])}
        pl.DataFrame({**columns, "label": LABELS[name]}).write_csv(folder / f"{name}.csv")
    return folder


def assert_same_models(one: fedlog.Result, other: fedlog.Result) -> None:
    """Every parameter of every client's model is the same to the bit."""
    assert list(one.models) == list(other.models)
    for name in one.models:
        ours, theirs = one.models[name].params, other.models[name].params
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_five_lines_from_arrays_to_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(readme_lines()) == 5
    result = run_readme()
    shown = capsys.readouterr().out
    assert shown.startswith("fedlog on arrays, 10 rounds, seed 0: accuracy ")
    assert shown.rstrip().endswith("[0 0 0 0 0]")
    assert result.accuracy > 0.9


def test_three_csv_files_on_the_command_line_give_the_same_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_tables(tmp_path / "sites")
    command = ["run", "--data", f"sites:{folder}", "--label", "label", "--jobs", "1", "--json", "--quiet"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    told = json.loads(capsys.readouterr().out)
    result = run_readme()
    capsys.readouterr()
    assert told["accuracy_mean_over_clients"] == result.accuracy
    assert_same_models(fedlog.load(tmp_path / "run"), result)
    # The folder's models predict from new files, with the scaling of the site that they belong to.
    model = tmp_path / "run" / "models" / "site-2"
    assert main(["predict", str(model), "--data", str(folder / "site-2.csv"), "--json"]) == 0
    labels = json.loads(capsys.readouterr().out)["labels"]
    assert [int(label) for label in labels] == result.models["site-2"].predict(SITES["site-2"]).tolist()
    # Changed files are another experiment.
    path = folder / "site-0.csv"
    path.write_text(path.read_text().replace("14.23", "14.24", 1))
    assert main([*command, "--out", str(tmp_path / "run")]) == 2
    assert "holds a run with the same settings, but on other records" in capsys.readouterr().err


@pytest.mark.slow
def test_a_deployment_on_the_same_rows_ends_with_the_same_models(tmp_path: Path) -> None:
    from fedlog.flower.ops.local_federation import LocalFederation, LocalSite
    from fedlog.flower.protocol.plan import make_plan
    from fedlog.models.model_folder import load_model
    from fedlog.settings.presets import apply_recipe
    from fedlog.settings.spec import RunSpec

    tables = write_tables(tmp_path / "sites")
    federation = fedlog.Federation.from_csv(tables, label="label")
    settings: dict[str, Any] = {"rounds": 3, "epochs": 2, "learning_rate": 0.001, "body": "mlp:16,8", "batch_size": 10}
    simulated = {
        "federated": fedlog.run(federation, "fedlog", **settings),
        "local-only": fedlog.run(federation, "local", **settings),
    }
    assert federation.schema is not None
    (tmp_path / "deployed").mkdir()
    sites = {name: LocalSite(tables / f"{name}.csv", "mlp:16,8") for name in federation.clients}
    deployed = LocalFederation.create(tmp_path / "deployed", federation.schema, sites)
    # As `fedlog federate run` makes it: what is not given comes from the same recipe.
    given: dict[str, Any] = {"options": {"epochs": 2, "learning_rate": 0.001}, "rounds": 3, "batch_size": 10}
    plan = make_plan(apply_recipe(RunSpec(**given), given), "wine", lambda: len(sites))
    report = deployed.run(plan, print).report
    assert report["bits_up"] == simulated["federated"].bits_up
    for name, folder in deployed.sites.items():
        model = load_model(folder.models / "wine")
        twin = simulated[model.provenance["kept"]].models[name]
        for key, value in twin.params.items():
            assert torch.equal(value, model.params[key]), (name, key)
        assert np.array_equal(model.predict_proba(tables / f"{name}.csv"), twin.predict_proba(SITES[name]))


def test_the_readmes_table_is_made_from_the_records() -> None:
    table = make_main_methods_table(ROOT / "results").to_markdown().strip()
    page = (ROOT / "docs" / GAINS).read_text()
    for text, written in ((README, table), (page, f"{table}\n\n{describe_paired_gains(ROOT / 'results')}")):
        block = text.split(OVERVIEW)[1].split(OVERVIEW_END)[0].strip()
        assert block == written, "the page is older than results/: run `fedlog docs`"
    assert (ROOT / "docs" / "images" / "overview.svg").exists()


def test_the_data_function_of_the_page_is_given_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "data.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    (tmp_path / "my_module.py").write_text(blocks[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ["run", "--data", "my_module:my_data", "--rounds", "1", "--jobs", "1", "--quiet", "--json"]
    assert main([*command, "--clients", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"] == [f"site-{at}" for at in range(4)]
    assert main([*command, "--partition", "iid"]) == 2
    assert "does not use partition: its function does not read them" in capsys.readouterr().err


def test_a_folder_of_runs_has_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"a": (X[::2], Y[::2]), "b": (X[1::2], Y[1::2])}
    fedlog.compare(fedlog.Federation.from_arrays(rows), ["fedlog", "local"], 1, rounds=1, out=tmp_path / "runs")
    unfinished = tmp_path / "runs" / "later"
    unfinished.mkdir()
    (unfinished / "config.json").write_text((tmp_path / "runs/local/seed-0/config.json").read_text())
    assert main(["report", str(tmp_path / "runs")]) == 0
    page = Path(capsys.readouterr().out.removeprefix("report: ").strip())
    text = page.read_text()
    assert page == tmp_path / "runs" / "report.html"
    assert 'href="fedlog/seed-0/report.html"' in text
    assert (tmp_path / "runs/local/seed-0/report.html").exists()
    assert "not finished" in text
    assert main(["report", str(tmp_path)]) == 0  # at any depth
    assert main(["report", str(tmp_path / "nothing")]) == 2
