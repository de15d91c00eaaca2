"""`fedlog run --profile`: the time of a round by part, in a table, the records and a picture of the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedlog.cli.main import main
from fedlog.engine.training.tasks import OTHER, PARTS, Stopwatch, combine_times


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_profiled_run_says_where_its_time_went(jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Three clients: of two workers one has twice the work of the other, which waits longer than the server takes.
    settings = ["--data", "digits", "--clients", "3", "--body", "mlp:8", "--rounds", "2", "--jobs", jobs]
    settings += ["--partition", "iid", "--set", "epochs=5", "--backend", "loop"]
    assert main(["run", *settings, "--profile", "--out", str(tmp_path / "run")]) == 0
    assert "a round's time, mean of 2" in capsys.readouterr().err
    for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        parts = record["seconds_by_part"]
        assert set(parts) == {*PARTS, OTHER}
        assert all(parts[part] > 0 for part in ("gather", "forward", "backward", "optimiser", "statistics", "head"))
        assert sum(parts.values()) == pytest.approx(record["seconds"], rel=0.3)
        assert (parts["wait"] > 0) == (jobs == "2")
    assert "Where the time of a round went" in (tmp_path / "run" / "report.html").read_text()


def test_the_profile_is_in_the_json_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--data", "digits", "--clients", "5", "--body", "mlp:8", "--rounds", "2", "--jobs", "1", "--quiet"]
    assert main(["run", *settings, "--profile", "--json", "--out", str(tmp_path / "run")]) == 0
    found = json.loads(capsys.readouterr().out)["seconds_by_part"]
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    forward = [json.loads(line)["seconds_by_part"]["forward"] for line in lines]
    assert set(found) == {*PARTS, OTHER}
    assert found["forward"] == pytest.approx(sum(forward) / 2)


def test_a_run_that_is_not_profiled_records_no_times(tmp_path: Path) -> None:
    settings = ["--data", "digits", "--clients", "5", "--body", "mlp:4", "--rounds", "1", "--jobs", "1", "--quiet"]
    assert main(["run", *settings, "--out", str(tmp_path / "run")]) == 0
    assert "seconds_by_part" not in (tmp_path / "run" / "records.jsonl").read_text()
    assert "Where the time" not in (tmp_path / "run" / "report.html").read_text()


def test_an_inner_part_counts_for_the_outer_one() -> None:
    clock = Stopwatch()
    with clock.time("evaluate"), clock.time("forward"):
        pass
    taken = clock.read_and_reset()
    assert taken["evaluate"] > 0
    assert taken["forward"] == 0
    assert not any(clock.read_and_reset().values())


def test_parts_add_up_to_the_round() -> None:
    nothing = dict.fromkeys(PARTS, 0.0)
    workers = [{**nothing, "forward": 4.0, "wait": 3.0}, {**nothing, "forward": 2.0, "wait": 5.0}]
    found = combine_times(8.0, {**nothing, "head": 1.5}, workers)
    assert found["forward"] == 3.0
    assert found["wait"] == 2.5  # four on average, while the server worked for 1.5 of them
    assert sum(found.values()) == pytest.approx(8.0)
