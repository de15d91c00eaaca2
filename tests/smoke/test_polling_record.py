"""The table of pauses in docs/deploy-measured.md has the numbers of its record, and computing them again repeats it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "federation" / "polling.json").read_text())


def test_the_table_of_pauses_is_the_record() -> None:
    page = (ROOT / "docs" / "deploy-measured.md").read_text()
    pairs = zip(RECORD["runs"][::2], RECORD["runs"][1::2], strict=True)
    for flower, ours in pairs:
        assert (flower["pauses"], ours["pauses"]) == ("flower", "fedlog")
        cells = [f"{flower['sites']}", f"{flower['work_seconds']:g} s"]
        for run in (flower, ours):
            cells += [f"{run['extra_seconds_a_round']:.2f} s", f"{run['calls_a_site_and_round']}"]
        assert f"| {' | '.join(cells)} |" in page


def test_the_record_of_pauses_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    from benchmarks.polling import measure

    for run in RECORD["runs"][:4]:
        assert measure(run["sites"], run["work_seconds"], 500, run["pauses"] == "fedlog", seed=run["sites"]) == run
