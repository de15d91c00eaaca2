"""Audit every privacy mode, intact and with planted faults, and measure the accuracy of DP-SGD on the digits.

    python -m benchmarks.audit

Takes minutes and needs no data set. The table in docs/privacy-why.md is written from the record.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlog.audit.canary import run_audit
from fedlog.audit.result import AuditedPart, AuditSettings, Fault
from fedlog.engine.software import list_software_versions
from fedlog.experiments.run.execute import execute
from fedlog.privacy.guarantee import Budget, Trust, Unit
from fedlog.settings.spec import RunSpec

RECORDS = Path(__file__).parent / "records"
PAGE = Path(__file__).parents[1] / "docs" / "privacy-why.md"
BEGIN, END = "<!-- audits: written by `python -m benchmarks.audit` -->\n", "<!-- end of audits -->"
PLANTED = {Fault.NONE: "", Fault.UNCLIPPED: "no clip", Fault.EXACT_COUNT: "exact count beside"}
BUDGET = Budget(1.0, 1e-5)
UNITS = (Unit.RECORD, Unit.CLIENT)
LARGE = Budget(8.0, 1e-5)
FEW = 4000  # trials show what is plain to see
CLIENTS = 200  # in one secure sum, each of which agrees on a mask with each
AUDITS = [
    *(AuditSettings(unit, BUDGET, trust) for unit in UNITS for trust in (Trust.CENTRAL, Trust.LOCAL)),
    *(AuditSettings(unit, BUDGET, fault=Fault.SMALL_NOISE, too_small=1.3) for unit in UNITS),
    *(AuditSettings(unit, LARGE, trials=FEW) for unit in UNITS),
    *(AuditSettings(unit, LARGE, fault=Fault.SMALL_NOISE, too_small=2.0, trials=FEW) for unit in UNITS),
    *(AuditSettings(unit, LARGE, fault=Fault.UNCLIPPED, trials=FEW) for unit in UNITS),
    *(AuditSettings(unit, BUDGET, fault=Fault.EXACT_COUNT, trials=FEW) for unit in UNITS),
    AuditSettings(Unit.RECORD, Budget(4.0, 1e-5), releases=3, trials=FEW),
    AuditSettings(Unit.RECORD, BUDGET, Trust.DISTRIBUTED),
    AuditSettings(Unit.RECORD, BUDGET, Trust.DISTRIBUTED, fault=Fault.SMALL_NOISE, too_small=3.0),
    AuditSettings(Unit.CLIENT, BUDGET, Trust.DISTRIBUTED, canaries=CLIENTS),
    AuditSettings(Unit.CLIENT, BUDGET, Trust.DISTRIBUTED, canaries=CLIENTS, fault=Fault.SMALL_NOISE),
    AuditSettings(Unit.RECORD, BUDGET, audited=AuditedPart.DP_SGD),
    AuditSettings(Unit.RECORD, BUDGET, audited=AuditedPart.DP_SGD, fault=Fault.SMALL_NOISE),
    AuditSettings(Unit.PAPER, BUDGET, trials=FEW),
]
DP_SGD = RunSpec(
    data="digits",
    privacy="record",
    body_training="dp-sgd",
    clip="l2:3",
    epsilon=8.0,
    delta=1e-5,
    rounds=3,
    options={"epochs": 2},
)


def main(out: Path = RECORDS, most_trials: int = 40_000) -> None:
    """Run the audits, print them and write `audit.json`."""
    results: list[dict[str, Any]] = []
    for audit in AUDITS:
        start = time.process_time()
        result = run_audit(replace(audit, trials=min(audit.trials, most_trials)))
        print(result, flush=True)
        results.append({**result.as_json(), "cpu_seconds": round(time.process_time() - start, 1)})
    with tempfile.TemporaryDirectory() as folder:
        summary = execute(DP_SGD, Path(folder) / "run")
    print(f"DP-SGD on the digits: {100 * summary.accuracy_mean_over_clients:.1f} %")
    found = {
        "audits": results,
        "dp_sgd_digits": {"accuracy": summary.accuracy_mean_over_clients, "promise": summary.privacy},
        "made_with": list_software_versions(),
        "command": "python -m benchmarks.audit",
    }
    (out / "audit.json").write_text(json.dumps(found, indent=1) + "\n")
    if out == RECORDS:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(before + BEGIN + make_table(results) + END + rest.split(END)[1])


def make_table(results: list[dict[str, Any]]) -> str:
    """The table for docs/privacy-why.md, one row for each audit."""
    head = (
        "| what | planted | claimed epsilon | epsilon is at least | it could show | s |\n|---|---|---:|---|---:|---:|\n"
    )
    return head + "".join(map(_make_row, results))


def _make_row(found: dict[str, Any]) -> str:
    what = f"`{found['unit']}`, {found['mechanism']}"
    what += ", DP-SGD" if found["audited"] == AuditedPart.DP_SGD else ""
    what += f", {found['releases']} releases" if found["releases"] > 1 else ""
    planted = f"noise {found['too_small']:g} times too small" if "too_small" in found else PLANTED[found["fault"]]
    verdict = "refuted" if found["contradicted"] else "not contradicted"
    return (
        f"| {what} | {planted} | {found['epsilon_claimed']:g} | {found['epsilon_lower']:.2f}: {verdict} "
        f"| {found['epsilon_visible']:.1f} | {found['cpu_seconds']:.0f} |\n"
    )


if __name__ == "__main__":
    main()
