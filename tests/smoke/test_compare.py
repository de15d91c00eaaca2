"""`fedlog compare` on a user's files: the command, the files it writes, and continuing after a stop."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_iris

import fedlog
from fedlog.cli.main import main
from fedlog.data.federation import Federation
from fedlog.errors import InputError
from fedlog.experiments.compare.execution import split_into_groups
from fedlog.experiments.compare.finished_runs import read_findings_below
from fedlog.experiments.compare.variants import ComparedRun, VariantChoices, make_variants
from fedlog.experiments.tables.cells import TableRow
from fedlog.flower.protocol.plan import Plan
from fedlog.settings.presets import DEPLOYED_OPTIONS
from fedlog.settings.spec import RunSpec
from fedlog.settings.training import Recipe

SITES = ("north", "south", "east")
SHORT = ["--rounds", "1", "--body", "mlp:4", "--set", "epochs=1", "--seeds", "2", "--quiet"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Scikit-learn's iris with a column that names each row's hospital."""
    X, y = load_iris(return_X_y=True)
    columns = {f"x{at}": X[:, at] for at in range(4)}
    hospital = [SITES[at % 3] for at in np.arange(len(y))]
    pl.DataFrame({**columns, "hospital": hospital, "outcome": y}).write_csv(tmp_path / "iris.csv")
    return tmp_path / "iris.csv"


def arguments(table: Path, *more: str) -> list[str]:
    return ["--data", f"sites:{table}", "--site-column", "hospital", "--label", "outcome", *SHORT, *more]


def test_one_command_compares_and_goes_on(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plan = tmp_path / "out", tmp_path / "plan"
    more = (
        "--methods",
        "fedlog",
        "--out",
        str(out),
        "--csv",
        str(tmp_path / "a.csv"),
        "--latex",
        str(tmp_path / "a.tex"),
    )
    assert main(["compare", *arguments(table, *more, "--jobs", "2", "--json")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["label"] for each in told["methods"]] == ["fedlog", "local", "pooled"]
    assert set(told["methods"][0]["sites"]) == set(SITES)
    assert told["methods"][0]["bits"] > 0 == told["methods"][1]["bits"]
    assert told["advice"]["kind"] in ("federate", "train alone", "too few rows to tell")
    assert 'id="figure-comparison-1-bits"' in (out / "comparison.html").read_text()
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert len(rows) == 3 * 4
    assert "\\begin{tabular}" in (tmp_path / "a.tex").read_text()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert len(before) == 6
    assert main(["compare", *arguments(table, *more, "--jobs", "1", "--write-plan", str(plan))]) == 0
    printed = capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")} == before
    assert told["advice"]["sentence"] in printed
    assert "--method fedlog --recipe tuned --rounds 1" in printed
    assert "hospital" not in (plan / "schema.toml").read_text()
    assert pl.read_csv(plan / "north.csv").height == 50
    assert main(["report", str(tmp_path)]) == 0
    assert "Runs in" in (tmp_path / "report.html").read_text()


def test_every_seed_holds_out_other_rows_of_the_same_files(table: Path) -> None:
    federation = Federation.from_csv(table, "outcome", site_column="hospital")
    assert federation.clients == tuple(sorted(SITES))
    assert federation.split_again is not None
    again, same = federation.split_again(1), federation.split_again(0)
    assert same.content_digest() == federation.content_digest() != again.content_digest()
    assert len(again.train) == len(federation.train)
    found = fedlog.compare(federation, ["fedlog"], 2, rounds=1, body="mlp:4", epochs=1)
    assert found.findings.hold_out_scheme.redrawn
    assert found.runs["fedlog", 0].spec.data_sha256 != found.runs["fedlog", 1].spec.data_sha256


def test_codecs_bodies_and_recipes_are_crossed() -> None:
    choices = VariantChoices(("fedlog", "local"), ("f32", "q8"), ("mlp:4", "mlp:8"), {"": {}, "long": {"rounds": 30}})
    found = {variant.label: variant.spec for variant in make_variants(RunSpec(rounds=5), choices)}
    assert len(found) == 2 * 2 * (2 + 1)  # training alone sends nothing, so its codec does not count
    assert found["fedlog q8 mlp:8 long"].rounds == 30
    assert found["local mlp:4"].rounds == 5
    as_printed = RunSpec(data="sites:x", recipe=Recipe.PAPER)
    assert make_variants(as_printed, VariantChoices(("fedlog-c",)))[0].spec.options == {"first_head": "random"}
    for method, options in DEPLOYED_OPTIONS.items():  # what is compared is what sites run
        (compared,) = make_variants(as_printed, VariantChoices((method,)))
        deployed = Plan("trial", method).build_algorithm(3, 4)
        assert compared.spec.options.items() >= options.items()
        assert {name: getattr(deployed, name) for name in options} == options


def test_methods_of_one_exchange_are_not_charged_for_further_rounds() -> None:
    """In further rounds they would send the same sums again, and look as many times as expensive."""
    found = fedlog.compare("wine", ["fed-ridge", "fedlog"], 1, rounds=3, body="mlp:4", epochs=1)
    rounds = {label: run.summary.rounds for (label, _), run in found.findings.runs.items()}
    assert rounds == {"fed-ridge": 1, "fedlog": 3, "local": 3, "pooled": 3}
    assert "fed-ridge 1" in found.notes[0]
    own = fedlog.compare("wine", ["fed-ridge"], 1, rounds=3, body="mlp:4", options={"fed-ridge": {"rounds": 2}})
    assert own.findings.runs["fed-ridge", 0].summary.rounds == 2
    quick = fedlog.compare("wine", ["fed-ridge"], 1, quick=True, body="mlp:4")
    assert quick.findings.runs["fed-ridge", 0].summary.rounds == 1


def test_test_rows_that_all_sites_share_are_counted_once() -> None:
    """One model on the same 60 rows at six sites is judged by 60 rows, not by 360."""
    draw = np.random.default_rng(0)

    def make_rows(count: int) -> tuple[np.ndarray, np.ndarray]:
        X = draw.normal(size=(count, 4))
        return X, (X[:, 0] + draw.normal(size=count) > 0).astype(int)

    federation = Federation.from_arrays({f"site{at}": make_rows(30) for at in range(6)}, make_rows(60))
    found = fedlog.compare(federation, ["fed-ncm"], 2, body="identity").findings.results["fed-ncm"].accuracy
    assert found is not None
    # About 1.96 standard errors of 60 rows; of 360 rows it would be 0.8. Sites scale the rows a little differently.
    assert (found.half_width or 0) > 1.6 * np.sqrt(found.value * (1 - found.value) / 60)


def test_rows_of_a_public_table_are_told_apart_in_every_division() -> None:
    """Every seed gives a site other rows, so the position at the site would mistake one row for another."""
    table = Federation.named("wine")
    for seed in (0, 1):
        found = Federation.named("wine", seed=seed)
        assert found.train.rows is not None
        assert found.test.rows is not None
        same = [(table.train.inputs == row).all(1).nonzero().flatten().tolist() for row in found.train.inputs[:20]]
        for at, places in enumerate(same):
            assert table.train.rows is not None
            assert int(found.train.rows[at]) in [int(table.train.rows[place]) for place in places] or not places
        assert bool((found.test.rows < 0).all())
        assert len(set(found.test.rows.tolist())) == 44


def test_a_federation_without_row_numbers_is_judged_by_its_rows() -> None:
    numbered = Federation.named("digits").with_numbered_rows()
    assert numbered.train.rows is not None
    assert numbered.test.rows is not None
    assert numbered.test.rows.tolist() == list(range(len(numbered.test)))
    found = fedlog.compare(Federation.named("digits"), ["fed-ncm"], 2, rounds=1)
    assert found.findings.runs["fed-ncm", 0].scores.test["client-0"].places is not None


def test_mistakes_are_named(table: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"it is not known which column of .* names the sites"):
        Federation.from_csv(table, "outcome")
    with pytest.raises(InputError, match="expected a column clinic"):
        Federation.from_csv(table, "outcome", site_column="clinic")
    with pytest.raises(InputError, match="site_column needs one table"):
        Federation.from_csv(tmp_path, "outcome", site_column="hospital")
    with pytest.raises(InputError, match="unknown setting: epohcs"):
        fedlog.compare(f"sites:{table}", epohcs=3)


def test_numbers_to_predict_have_no_accuracy_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    regression = ["--method", "fed-regression", "--body", "identity"]
    for command in (["compare", "--quick"], ["run", "--seeds", "2", *regression]):
        assert main([*command, "--data", "diabetes", "--out", str(tmp_path / "out")]) == 2
        assert "the label of diabetes is a number" in capsys.readouterr().err
    own = Federation.from_arrays({"a": (np.zeros((9, 2)), np.arange(9.0))}, number=(0.0, 8.0))
    with pytest.raises(InputError, match="a comparison needs a label with classes"):
        fedlog.compare(own, methods=["fed-regression"], seeds=1)


def test_several_seeds_of_one_run_are_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "--data", "digits", "--rounds", "1", "--set", "epochs=1", "--seeds", "2", "--jobs", "1"]
    assert main([*run, "--out", str(tmp_path / "r"), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "fedlog " in out
    assert "2 repetitions" in out


def test_sites_with_bodies_of_their_own_are_compared_without_what_needs_one_body() -> None:
    generator = np.random.default_rng(0)
    sites = {name: (generator.normal(size=(40, 3)), generator.integers(0, 2, 40)) for name in ("north", "south")}
    federation = fedlog.Federation.from_arrays(sites)
    bodies = {"north": "mlp:4", "south": "mlp:6,4"}
    found = fedlog.compare(federation, seeds=1, rounds=1, body=bodies, epochs=1)
    assert {"fedlog", "local"} <= set(found.methods)
    assert not {"fedavg", "pooled"} & set(found.methods)
    assert any(note.endswith("one body for all sites: fedavg, pooled") for note in found.notes)
    assert not any("failed" in warning for warning in found.warnings)
    asked = fedlog.compare(federation, ["fedlog", "fedavg"], seeds=1, rounds=1, body=bodies, epochs=1)
    assert any("fedavg" in warning for warning in asked.warnings)  # asked for by name, it says why it cannot run


@pytest.mark.parametrize("groups", [1, 2, 3, 4, 6, 7, 30, 40])
@pytest.mark.parametrize("methods", [1, 2, 3, 6])
def test_parallel_groups_have_equal_sizes_and_share_out_each_method(groups: int, methods: int, tmp_path: Path) -> None:
    variants = [TableRow(f"m{at}", f"m{at}", RunSpec()) for at in range(methods)]
    runs = [ComparedRun(variant, seed, tmp_path) for variant in variants for seed in range(5)]
    found = split_into_groups(runs, groups)
    assert sorted(run.name for part in found for run in part) == sorted(run.name for run in runs)
    assert len(found) == min(groups, len(runs))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    if methods > 1 and groups == methods:
        assert all(len({run.variant.label for run in part}) > 1 for part in found), "one group has a method of its own"


def test_runs_with_the_same_label_and_seed_do_not_hide_each_other(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["compare", *arguments(table, "--methods", "fedlog", "--seeds", "1", "--out", str(out))]) == 0
    (before,) = read_findings_below(out)
    (run,) = (path.parent for path in out.rglob("summary.json") if json.loads(path.read_text())["method"] == "fedlog")
    shutil.copytree(run, out / "copied")
    (found,) = read_findings_below(out)
    assert len(found.labels) == len(before.labels) + 1
    assert any("copied" in label or run.name in label for label in found.labels)
