"""A run with secure sums that is interrupted and resumed has the numbers of one that was not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedlog.engine.protocol.cohort import Cohort
from fedlog.errors import InputError
from fedlog.experiments.run.execute import execute
from fedlog.settings.spec import RunSpec

SPEC = RunSpec(
    data="digits",
    clients=10,
    body=("mlp:8",),
    train_records=300,
    options={"epochs": 1},
    rounds=5,
    aggregation="secure",
    honest=4,
    jobs=1,
)


def _interrupted_in(round_number: int, spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working = Cohort.make_encoded_uploads

    def dies(self: Cohort, number: int, *rest: object) -> object:
        if number == round_number:
            raise KeyboardInterrupt
        return working(self, number, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(Cohort, "make_encoded_uploads", dies)
        with pytest.raises(KeyboardInterrupt):
            execute(spec, folder)


def _numbers(folder: Path) -> list[dict[str, Any]]:
    rounds = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    return [{k: v for k, v in entry.items() if k not in ("seconds", "made_with")} for entry in (*rounds, summary)]


@pytest.mark.parametrize("settings", [{"dropout_rate": 0.25}, {"method": "fedlog-c"}, {"participation": 0.7}], ids=str)
def test_a_resumed_run_repeats_accuracies_survivors_turns_and_bits(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec(**{**SPEC.__dict__, **settings})
    execute(spec, tmp_path / "whole")
    expected = _numbers(tmp_path / "whole")
    if "dropout_rate" in settings:
        survivors = [entry["observed"]["secure_sum_survivors"] for entry in expected[:-1]]
        assert len(set(survivors[3:])) > 1 or survivors[3] < 10  # otherwise the test would see nothing
    for stop in (2, 4):
        _interrupted_in(stop, spec, tmp_path / "resumed", monkeypatch)
    execute(spec, tmp_path / "resumed")
    assert _numbers(tmp_path / "resumed") == expected


def test_a_checkpoint_holds_no_key_and_one_without_the_number_of_sums_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _interrupted_in(2, SPEC, tmp_path / "run", monkeypatch)
    (sums,) = (tmp_path / "run" / "checkpoint").rglob("sums.json")
    everyone = list(range(10))
    assert json.loads(sums.read_text()) == {"made": 1, "ahead": everyone, "members": everyone, "coordinates": 90}
    sums.unlink()
    with pytest.raises(InputError, match="how many secure sums"):
        execute(SPEC, tmp_path / "run")
