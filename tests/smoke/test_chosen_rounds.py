"""The accuracy at the rounds that clients choose on their validation records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from made_up_runs import write_run

from fedlog.cli.main import main
from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run.execute import RECORDS, SUMMARY
from fedlog.experiments.run.records import compute_accuracy_at_chosen_rounds
from fedlog.experiments.tables.catalog import find_experiment as find_experiment
from fedlog.experiments.tables.cells import list_cells
from fedlog.experiments.tables.finished_cells import collect_runs
from fedlog.report.paper.method_tables import make_method_tables

SHORT = ["run", "--data", "circle", "--rounds", "6", "--set", "epochs=1", "--jobs", "1", "--quiet", "--json"]
HELD_OUT = ["--validation-fraction", "0.3"]


def make_round(number: int, correct: list[int], validation: list[float | None]) -> RoundRecord:
    """A round in which each of these clients is tested on ten records; the last client has none."""
    records = [10] * (len(correct) - 1) + [0]
    return RoundRecord(
        number, 0.0, correct, records, len(correct), 0, 0, {}, {}, {}, 0.0, validation_per_client=validation
    )


def test_each_client_takes_its_own_first_best_round() -> None:
    rounds = [
        make_round(1, [1, 2, 3, 0], [0.5, 0.9, None, 1.0]),
        make_round(2, [4, 5, 6, 0], [0.8, 0.2, None, 1.0]),
        make_round(3, [7, 8, 9, 0], [0.8, 0.1, None, 1.0]),
    ]
    # The first of two equals, a best round that lies early, the last round without validation records, and nobody.
    assert compute_accuracy_at_chosen_rounds(rounds) == pytest.approx((0.4 + 0.2 + 0.9) / 3)


def test_a_run_that_is_judged_on_one_kind_has_no_chosen_rounds() -> None:
    assert compute_accuracy_at_chosen_rounds([make_round(1, [1, 2], [])]) is None


def test_both_kinds_are_judged_as_two_runs_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    for judge in ("test", "validation", "both"):
        assert main([*SHORT, *HELD_OUT, "--judge", judge, "--out", judge]) == 0
        found[judge] = json.loads(capsys.readouterr().out)
    lines = {judge: [json.loads(line) for line in Path(judge, RECORDS).read_text().splitlines()] for judge in found}
    for both, test, validation in zip(lines["both"], lines["test"], lines["validation"], strict=True):
        assert both["correct_per_client"] == test["correct_per_client"]
        shares = zip(validation["correct_per_client"], validation["records_per_client"], strict=True)
        assert both["validation_per_client"] == [correct / records for correct, records in shares]
        assert "validation_per_client" not in test
        assert "validation_per_client" not in validation
    chosen = []
    for at in range(len(lines["both"][0]["correct_per_client"])):
        held_out = [line["correct_per_client"][at] for line in lines["validation"]]
        best = lines["test"][held_out.index(max(held_out))]
        chosen.append(best["correct_per_client"][at] / best["records_per_client"][at])
    assert found["both"]["accuracy_at_chosen_rounds"] == pytest.approx(fmean(chosen))
    assert found["both"]["accuracy_mean_over_clients"] == found["test"]["accuracy_mean_over_clients"]
    assert "accuracy_at_chosen_rounds" not in json.loads(Path("test", SUMMARY).read_text())


def test_both_kinds_need_validation_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SHORT, "--judge", "both", "--out", "r"]) == 2
    told = capsys.readouterr().err
    assert "no client has a validation record" in told
    assert "--validation-fraction 0.2" in told


def test_the_terminal_and_the_report_show_chosen_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    talking = [word for word in SHORT if word not in ("--quiet", "--json")]
    assert main([*talking, *HELD_OUT, "--judge", "both", "--out", "r"]) == 0
    assert "chosen on its validation records" in " ".join(capsys.readouterr().err.split())
    assert "at chosen rounds" in Path("r/report.html").read_text()


def test_the_table_has_final_chosen_and_best_rounds(tmp_path: Path) -> None:
    experiment = find_experiment("table-mnist-chosen-rounds")
    of_fedlog = replace(experiment, rows=(experiment.find_row("fedlog"),), seeds=(0, 1))
    for cell, chosen in zip(list_cells(of_fedlog, tmp_path), (0.975, 0.985), strict=True):
        write_run(cell, [0.90, 0.99, 0.97], 1000)
        summary = json.loads((cell.folder / SUMMARY).read_text())
        (cell.folder / SUMMARY).write_text(json.dumps({**summary, "accuracy_at_chosen_rounds": chosen}))
    (table,) = make_method_tables(collect_runs(experiment, tmp_path))
    (row,) = table.rows
    assert row == ("FedLog", "2", "97.00 ± 0.00", "98.00 ± 0.50", "+1.00 ± 0.50", "99.00 ± 0.00")
