"""The page *Is it worth federating?* says what the records say."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from fedlog.experiments.compare.advice import FALSE_CLAIM_RATE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "worth-federating.md").read_text()
RECORDS = [
    path
    for folder in ("advice", "advice-errors", "worth-federating", "compare-speed")
    for path in sorted((ROOT / "results" / folder).glob("*.json"))
]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The scripts that made the records, and write their tables."""
    monkeypatch.syspath_prepend(str(ROOT))  # before an installed package of the same name
    return {name: importlib.import_module(f"benchmarks.{name}") for name in ("advice", "advice_errors")}


def test_the_table_of_the_advice_is_that_of_the_records(benchmarks: dict[str, ModuleType]) -> None:
    lines = benchmarks["advice"].describe(ROOT / "results" / "advice")
    assert len(lines) == 11
    assert "\n".join(lines) in PAGE


def test_the_table_of_the_errors_is_that_of_the_record(benchmarks: dict[str, ModuleType]) -> None:
    lines = benchmarks["advice_errors"].describe(ROOT / "results" / "advice-errors" / "errors.json")
    assert len(lines) == 4
    assert "\n".join(lines) in PAGE


def test_the_page_names_the_levels_of_the_intervals_in_the_advice() -> None:
    levels = {methods: 100 * (1 - 2 * FALSE_CLAIM_RATE / methods) for methods in (1, 2, 4)}
    for methods, level in levels.items():
        assert f"{level:g} % for {methods} method" in PAGE
    assert f"The level of the interval is {100 * (1 - 2 * FALSE_CLAIM_RATE):g} %." in PAGE


@pytest.mark.parametrize("name", ["har-by-people", "digits", "digits-by-label", "wine"])
def test_the_output_on_a_public_table_is_the_recorded_one(name: str) -> None:
    folder = ROOT / "results" / "worth-federating"
    assert (folder / f"{name}.txt").read_text().strip() in PAGE
    values = json.loads((folder / f"{name}.json").read_text())
    assert values["advice"]["sentence"] in PAGE


def test_there_is_a_table_that_pays_and_one_that_does_not() -> None:
    kinds = {
        path.stem: json.loads(path.read_text())["advice"]["kind"]
        for path in (ROOT / "results" / "worth-federating").glob("*.json")
    }
    assert kinds["har-by-people"] == "federate"
    assert kinds["digits-by-label"] == "train alone"


def test_the_times_are_those_of_the_records() -> None:
    for path in (ROOT / "results" / "compare-speed").glob("*.json"):
        assert f"{json.loads(path.read_text())['seconds_of_computing']:g} seconds of computing" in PAGE


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_record_names_a_clean_commit(path: Path) -> None:
    assert re.fullmatch(r"[0-9a-f]{7,40}", json.loads(path.read_text())["made_with"]["commit"])
