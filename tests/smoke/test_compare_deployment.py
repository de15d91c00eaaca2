"""Sites that follow the plan of a comparison, as real processes, get the models of the comparison."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from three_sites import BODIES, write_table

import fedlog
from fedlog.cli.compare_work import find_body_name, write_plan
from fedlog.cli.main import parse_arguments
from fedlog.data.schema import load_schema
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite
from fedlog.flower.protocol.plan import make_plan
from fedlog.models.model_folder import load_model
from fedlog.settings.flags import read_given_settings
from fedlog.settings.spec import RunSpec

pytestmark = pytest.mark.slow


def test_the_sites_end_with_the_models_of_the_comparison(tmp_path: Path) -> None:
    folder, root = tmp_path / "sites", tmp_path / "federation"
    folder.mkdir()
    root.mkdir()
    for name in BODIES:
        write_table(folder / f"{name}.csv", name)
    settings = {"rounds": 2, "label": "y", "body": dict(BODIES), "epochs": 2, "learning_rate": 0.01}
    found = fedlog.compare(f"sites:{folder}", ["fedlog"], [0], out=tmp_path / "runs", **settings)
    commands = write_plan(tmp_path / "plan", found, None).splitlines()
    spec = RunSpec(**read_given_settings(parse_arguments(shlex.split(commands[-1])[1:])))
    sites = {
        name: LocalSite(folder / f"{name}.csv", find_body_name(found.runs["fedlog", 0].spec, name)) for name in BODIES
    }
    federation = LocalFederation.create(root, load_schema(tmp_path / "plan" / "schema.toml"), sites)
    federation.run(make_plan(spec, "run-1", lambda: 3), print)
    for name, site in federation.sites.items():
        scores = found.findings.runs["fedlog", 0].scores
        report = json.loads((site.models / "run-1" / "report.json").read_text())
        assert report["federated"]["test"]["accuracy"] == pytest.approx(scores.test[name].accuracy)
        assert report["federated"]["validation"]["records"] == scores.validation[name].rows
        kept = {"federated": "fedlog", "local-only": "local"}[report["kept"]]
        simulated, deployed = found.runs[kept, 0].models[name], load_model(site.models / "run-1")
        assert simulated.params.keys() == deployed.params.keys()
        for part, values in deployed.params.items():
            assert torch.allclose(simulated.params[part], values, atol=1e-5), (name, part)
