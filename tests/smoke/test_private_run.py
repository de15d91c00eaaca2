"""Private runs from the command line: what they print, what they refuse, and what a resumed one may still spend."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from fedlog.cli.main import main
from fedlog.core.keys import Key
from fedlog.engine.protocol.cohort import Cohort
from fedlog.errors import InputError
from fedlog.experiments.run.execute import execute
from fedlog.experiments.run.prepare import make_simulation
from fedlog.experiments.run.privacy import list_privacy_notices
from fedlog.models.catalog import make_body
from fedlog.privacy.release_log import FILE_NAME, read_log
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec

SMALL = RunSpec(data="digits", clients=5, body=("mlp:8",), train_records=200, options={"epochs": 1})
RECORD: dict[str, Any] = {"privacy": "record", "body_training": "frozen", "epsilon": 2.0, "delta": 1e-5, "clip": "l2:3"}


def _spec(**settings: Any) -> RunSpec:
    return RunSpec(**{**SMALL.__dict__, **settings})


def test_a_private_run_prints_its_guarantee_whole_and_spend_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--data", "digits", "--clients", "5", "--train-records", "200", "--body", "mlp:8", "--rounds", "1"]
    private = ["--privacy", "record", "--body-training", "frozen", "--epsilon", "2", "--delta", "0.01"]
    more = ["--clip", "l2:3", "--trust", "local", "--jobs", "1", "--out", str(tmp_path / "run")]
    assert main(["run", *given, *private, *more]) == 0
    said = capsys.readouterr()
    for part in ("epsilon 2 at delta 0.01", "unit: record", "neighbours: ", "releases: 1", "trusted: no one"):
        assert part in said.out
    assert "delta 0.01 is above 1/200" in said.err
    assert "the noise is not private" in said.err
    assert main(["privacy", "spend", str(tmp_path / "run"), "--json"]) == 0
    spent = json.loads(capsys.readouterr().out)
    assert len(spent["releases"]) == 1
    assert spent["guarantee"]["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"]["unit"] == "record"


def test_mode_paper_prints_that_it_guarantees_nothing(tmp_path: Path) -> None:
    spec = _spec(privacy="paper", epsilon=5.0, delta=1e-5, clip="clamp:2", rounds=1, method="fedlog-c")
    summary = execute(spec, tmp_path / "run")
    assert summary.privacy is not None
    assert summary.privacy["epsilon"] is None
    assert summary.privacy["releases"] == 2  # the opening exchange counts
    assert "no formal guarantee" in summary.privacy["statement"]


def test_distributed_noise_for_whole_clients_goes_through_the_secure_sum(tmp_path: Path) -> None:
    spec = _spec(privacy="client", epsilon=5.0, delta=1e-5, message_norm=50.0, trust="distributed", rounds=1)
    summary = execute(spec, tmp_path / "run")
    assert summary.privacy is not None
    assert summary.privacy["unit"] == "client"
    # Five clients cannot be heard over that noise, and the run says so.
    assert summary.privacy["rounds_with_old_head"] == 1
    assert any("kept the old head" in caveat for caveat in summary.privacy["caveats"])
    (release,) = read_log(tmp_path / "run" / FILE_NAME).releases
    assert release.shares == 2  # of three survivors, whoever looks knows its own
    record = json.loads((tmp_path / "run" / "records.jsonl").read_text())
    assert record["bits_by_kind"]["secure masked up"] > 0


def test_a_resumed_run_is_held_to_the_budget_it_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = _spec(**RECORD, rounds=3)
    folder = tmp_path / "run"
    working = Cohort.make_encoded_uploads

    def dies_in_round_two(self: Cohort, number: int, *rest: object) -> object:
        if number == 2:
            raise KeyboardInterrupt
        return working(self, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Cohort, "make_encoded_uploads", dies_in_round_two)
    with pytest.raises(KeyboardInterrupt):
        execute(spec, folder)
    assert [release.round for release in read_log(folder / FILE_NAME).releases] == [1, 2]
    monkeypatch.setattr(Cohort, "make_encoded_uploads", working)
    shutil.copytree(folder, tmp_path / "unrecorded")
    (tmp_path / "unrecorded" / FILE_NAME).unlink()
    with pytest.raises(InputError, match="releases, too few for a checkpoint of round 1"):
        execute(spec, tmp_path / "unrecorded")
    # Round 2 was recorded before anything left, so it counts although nothing did: round 3 is one release too many.
    summary = execute(spec, folder)
    assert [release.round for release in read_log(folder / FILE_NAME).releases] == [1, 2, 2]
    assert summary.rounds == 2
    assert summary.privacy is not None
    assert summary.privacy["epsilon"] <= 2.0
    assert any("ended after round 2 of 3" in caveat for caveat in summary.privacy["caveats"])
    assert len(list((folder / "models").glob("*.safetensors"))) == 5
    execute(spec, tmp_path / "whole")
    whole = (tmp_path / "whole" / "records.jsonl").read_text().splitlines()
    for one, other in zip((folder / "records.jsonl").read_text().splitlines(), whole, strict=False):
        assert json.loads(one)["correct_per_client"] == json.loads(other)["correct_per_client"]


REFUSED: dict[str, dict[str, Any]] = {
    "body mlp:8 is trained on it by fedlog": {**RECORD, "body_training": None},
    "body mlp:8 may have been trained on it": {**RECORD, "method": "fed-ncm", "rounds": 1, "body_training": None},
    "needs a budget": {**RECORD, "delta": None},
    "delta must be": {**RECORD, "delta": 1.5},
    "needs a bound on each record": {**RECORD, "clip": None},
    "clip must be": {**RECORD, "clip": "box:1"},
    "need --privacy": {"epsilon": 1.0},
    "cannot be used with frozen bodies": {**RECORD, "method": "fedavg"},
    "cannot be used with --privacy": {**RECORD, "privacy": "client", "body_training": None, "method": "fedavg"},
    "every client in every round": {**RECORD, "privacy": "client", "participation": 0.5},
    "would depend on private data": {**RECORD, "stop_at_accuracy": 0.9},
    "they hide single uploads": {"aggregation": "secure", "refused_share": 0.1},
    "central noise cannot be used with secure sums": {**RECORD, "aggregation": "secure"},
    "must be the same for all clients": {**RECORD, "initialisation": "separate"},
    "--honest must be": {**RECORD, "trust": "distributed", "honest": 9},
    "the same body for all clients": {
        "privacy": "client",
        "epsilon": 2.0,
        "delta": 1e-5,
        "message_norm": 5.0,
        "body": ("mlp:8", "mlp:6,8"),
    },
    "cannot read the body's parameters": {**RECORD, "body_file": "nowhere.safetensors"},
}


@pytest.mark.parametrize("said", REFUSED)
def test_contradictions_are_refused_by_name(said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        execute(_spec(**{"rounds": 1, **REFUSED[said]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_frozen_body_can_come_from_a_file_and_counts_by_its_content(
    tmp_path: Path,
) -> None:
    public, copy = tmp_path / "public.safetensors", tmp_path / "copy.safetensors"
    save_file(make_body("mlp:8", (64,)).make_initial_params(Key(9)), public)
    copy.write_bytes(public.read_bytes())
    run = resolve(_spec(**RECORD, rounds=1, body_file=str(public)))
    assert resolve(_spec(**RECORD, rounds=1, body_file=str(copy))).digest == run.digest
    assert execute(run.spec, tmp_path / "private").privacy is not None
    assert any("takes your word" in note for note in list_privacy_notices(run.spec, make_simulation(run)))
    with pytest.raises(InputError, match="must have shape"):
        execute(_spec(**{**RECORD, "body": ("mlp:9",), "rounds": 1, "body_file": str(public)}), tmp_path / "other")
    named = _spec(**{**RECORD, "rounds": 1, "body": (f"frozen:{public}",)})
    before = resolve(named).digest
    save_file(make_body("mlp:8", (64,)).make_initial_params(Key(10)), public)
    assert resolve(named).digest != before


def test_a_body_that_a_run_trained_on_private_data_is_refused_by_name(tmp_path: Path) -> None:
    execute(_spec(rounds=1, clip="l2:3"), tmp_path / "run")
    trained = sorted((tmp_path / "run" / "models").glob("*.safetensors"))[0]
    with pytest.raises(InputError, match="was trained by: fedlog"):
        resolve(_spec(**RECORD, rounds=1, body_file=str(trained)))
    with pytest.raises(InputError, match="was trained by: fedlog"):
        resolve(_spec(**{**RECORD, "rounds": 1, "body": (f"frozen:{trained}",)}))


def test_the_accuracies_of_a_private_run_are_said_to_be_outside_the_protocol(tmp_path: Path) -> None:
    run = resolve(_spec(**RECORD, rounds=1))
    assert any("outside the protocol" in note for note in list_privacy_notices(run.spec, make_simulation(run)))
    summary = execute(run.spec, tmp_path / "run")
    assert summary.privacy is not None
    assert "outside the protocol" in summary.privacy["accuracies"]
