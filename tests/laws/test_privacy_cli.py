"""`fedlog privacy`: the numbers on the command line are the library's, and nothing invalid gets through."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedlog.cli.privacy import add_arguments
from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.privacy.guarantee import Budget, Trust, Unit
from fedlog.privacy.mechanisms import FloatSampler, plan_noise
from fedlog.privacy.protection import ContributionBound, Protection
from fedlog.privacy.release_log import FILE_NAME, record_release, start_or_resume_log

BUDGET = ["--epsilon", "0.5", "--delta", "0.01", "--releases", "100"]


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(arguments)
    code = args.handler(args) or 0
    assert isinstance(code, int)
    return code


def facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(*arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_worked_example(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, "calibrate", *BUDGET, "--sensitivity", "1")
    assert found["sigma"] == pytest.approx(31.4691, abs=5e-5)
    assert found["noise_multiplier"] == found["sigma"]
    assert (found["sensitivity"], found["releases"], found["epsilon"], found["delta"]) == (1, 100, 0.5, 0.01)
    assert found["times_less_noise_than_paper"] == pytest.approx(3.58, abs=0.005)


@pytest.mark.parametrize(
    ("options", "sensitivity"),
    [
        (["--features", "51", "--clip", "2"], math.sqrt(1 + 50 * 4)),
        (["--features", "51", "--clip", "clamp:2"], math.sqrt(1 + 50 * 4)),
        (["--features", "51", "--clip", "l2:3"], math.sqrt(10)),
        (["--privacy", "client", "--clip", "3"], 3.0),
        (["--privacy", "client", "--clip", "message:3", "--mechanism", "local"], 6.0),
        (["--privacy", "client", "--clip", "3", "--mechanism", "distributed", "--honest", "10"], 3.0),
        (["--features", "51", "--clip", "2", "--sensitivity", "7"], 7.0),
    ],
)
def test_the_sensitivity_follows_from_clip_unit_and_trust(
    capsys: pytest.CaptureFixture[str], options: list[str], sensitivity: float
) -> None:
    found = facts(capsys, "calibrate", *BUDGET, *options)
    assert found["sensitivity"] == pytest.approx(sensitivity, rel=1e-12)
    assert found["noise_multiplier"] == pytest.approx(31.4691, abs=5e-5)
    if "--honest" in options:
        assert found["client_std"] == pytest.approx(found["sigma"] / 3, rel=1e-12)


def test_the_text_says_all_that_gives_epsilon_a_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("calibrate", *BUDGET, "--features", "101", "--clip", "2", "--protected", "600") == 0
    out, err = capsys.readouterr()
    for part in (
        "epsilon 0.5 at delta 0.01",
        "sigma",
        "noise multiplier",
        "record",
        "one record",
        "server",
        "3.58 times",
    ):
        assert part in out
    assert "warning: delta 0.01 is above 1/600" in err


def test_the_papers_mode_is_no_guarantee(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, "calibrate", *BUDGET, "--privacy", "paper", "--features", "51", "--clip", "2")
    assert found["guarantee"] is False
    assert "no formal guarantee" in found["caveat"]
    assert found["sigma"] == pytest.approx(math.sqrt(8 * 100 * 201 * math.log(math.e + 50)) / 0.5, rel=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        ["--epsilon", "0", "--delta", "0.01", "--releases", "1", "--sensitivity", "1"],
        ["--epsilon", "1", "--delta", "1", "--releases", "1", "--sensitivity", "1"],
        ["--epsilon", "nan", "--delta", "0.1", "--releases", "1", "--sensitivity", "1"],
        ["--epsilon", "1", "--delta", "0.1", "--releases", "0", "--sensitivity", "1"],
        [*BUDGET, "--sensitivity", "0"],
        BUDGET,
        [*BUDGET, "--clip", "2"],
        [*BUDGET, "--clip", "box:2", "--features", "51"],
        [*BUDGET, "--clip", "-2", "--features", "51"],
        [*BUDGET, "--clip", "message:2", "--features", "51"],
        [*BUDGET, "--clip", "clamp:2", "--privacy", "client"],
        [*BUDGET, "--sensitivity", "1", "--honest", "3"],
        [*BUDGET, "--sensitivity", "1", "--features", "0"],
        [*BUDGET, "--sensitivity", "1", "--protected", "0"],
    ],
)
def test_bad_requests_are_refused(options: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        run("calibrate", *options)
    assert caught.value.exit_code == 2


def recorded_run(folder: Path, releases: int, unit: Unit = Unit.RECORD) -> Path:
    budget = Budget(1.0, 1e-5)
    mechanism = plan_noise(budget, releases=5, sensitivity=2.0, coordinates=510, unit=unit, trust=Trust.CENTRAL)
    start_or_resume_log(folder / FILE_NAME, budget)
    for number in range(releases):
        exchange = "opening" if number == 0 else "statistics"
        sampler = FloatSampler(Key(3).child(number))
        guard = Protection(budget, mechanism, ContributionBound(), 5, 510, lambda _, sampler=sampler: sampler)  # type: ignore[misc]
        record_release(folder / FILE_NAME, guard.make_release_event(number, exchange))
    return folder


def test_an_interrupted_run_has_spent_what_it_released(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, "spend", str(recorded_run(tmp_path, releases=3)))
    assert [row["exchange"] for row in found["releases"]] == ["opening", "statistics", "statistics"]
    epsilons = [row["epsilon"] for row in found["releases"]]
    assert epsilons == sorted(epsilons)
    assert found["guarantee"]["epsilon"] == epsilons[-1] < 1.0
    assert any("not private" in caveat for caveat in found["caveats"])
    assert run("spend", str(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert "releases: 3" in out
    assert "not private" in err


def test_a_finished_run_has_spent_its_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, "spend", str(recorded_run(tmp_path, releases=5)))
    assert found["guarantee"]["epsilon"] == pytest.approx(1.0, rel=1e-4)
    assert found["guarantee"]["epsilon"] <= 1.0


def test_a_run_of_the_papers_mode_states_no_epsilon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, "spend", str(recorded_run(tmp_path, releases=5, unit=Unit.PAPER)))
    assert found["guarantee"]["epsilon"] is None
    assert all("epsilon" not in row for row in found["releases"])


def test_a_run_that_released_nothing_spent_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert facts(capsys, "spend", str(recorded_run(tmp_path, releases=0)))["guarantee"] is None


def test_a_folder_without_a_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a release log, found none"):
        run("spend", str(tmp_path))
