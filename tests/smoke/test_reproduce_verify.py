"""`fedlog reproduce --verify`: finished cells are run again, and those that differ are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedlog.cli.main import main
from fedlog.engine.software import find_processor
from fedlog.experiments.run.execute import RunFilesToKeep, execute
from fedlog.experiments.tables import catalog
from fedlog.experiments.tables.cells import Experiment, ExperimentKind, TableRow, list_cells
from fedlog.report.paper.reproduction import write_reproduction_pages
from fedlog.settings.spec import RunSpec


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two finished cells of a small experiment on the digits that come with the package."""
    spec = RunSpec(method="fedlog", data="digits", clients=10, rounds=2, options={"epochs": 1})
    small = Experiment("small", "A small one", ExperimentKind.CURVES, (TableRow("fedlog", "FedLog", spec),), (0, 1))
    monkeypatch.setitem(catalog.EXPERIMENTS, "small", small)
    for cell in list_cells(small, tmp_path):
        execute(cell.spec, cell.folder, keep=RunFilesToKeep.RECORDS_ONLY)
    return tmp_path


def test_a_cell_that_repeats_and_one_that_does_not(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = results / "small" / "fedlog" / "seed-1" / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["correct_per_client"][0] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["reproduce", "small", "--verify", "1", "--out", str(results)]) == 0
    assert main(["reproduce", "small", "--verify", "--out", str(results)]) == 1
    printed = capsys.readouterr()
    assert "small: 1 of 2 finished cells repeat" in printed.out
    assert "fedlog seed 1: differs from round 2 on" in printed.err
    assert "hint" not in printed.err  # the record was made on this processor
    write_reproduction_pages(results, results / "docs")
    page = (results / "docs" / "reproduction" / "small.md").read_text()
    assert "1 of 2 cells run again repeat their first rounds, not fedlog/seed-1" in page


def test_a_difference_on_another_processor_is_explained(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = results / "small" / "fedlog" / "seed-0"
    (folder / "records.jsonl").write_text((folder.parent / "seed-1" / "records.jsonl").read_text())
    config = json.loads((folder / "config.json").read_text())
    for made_on, named in (("Another, AVX2", "Another, AVX2"), (None, "a processor that the record does not name")):
        del config["made_with"]["processor"]
        if made_on:
            config["made_with"]["processor"] = made_on
        (folder / "config.json").write_text(json.dumps(config))
        assert main(["reproduce", "small", "--verify", "--seeds", "0", "--out", str(results)]) == 1
        assert f"hint: it was made on {named}, this is {find_processor()}; others" in capsys.readouterr().err


def test_what_cannot_be_verified_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table-mnist", "--verify", "--out", str(tmp_path)]) == 2
    assert f"table-mnist has no finished run to verify in {tmp_path / 'table-mnist'}" in capsys.readouterr().err
    assert main(["reproduce", "table-mnist", "--verify", "0", "--out", str(tmp_path)]) == 2
