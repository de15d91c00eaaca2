"""The table of audits in docs/privacy-why.md has the numbers of the committed record."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_table_of_audits_is_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    from benchmarks.audit import AUDITS, BEGIN, END, make_table

    record = json.loads((ROOT / "benchmarks" / "records" / "audit.json").read_text())
    page = (ROOT / "docs" / "privacy-why.md").read_text()
    kept = [
        tuple(found[name] for name in ("unit", "mechanism", "fault", "audited", "releases"))
        for found in record["audits"]
    ]
    assert kept == [(audit.unit, audit.trust, audit.fault, audit.audited, audit.releases) for audit in AUDITS]
    assert page.split(BEGIN)[1].split(END)[0] == make_table(record["audits"])
