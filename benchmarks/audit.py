"""What the audit finds in every mode, intact and with planted faults, and what DP-SGD reaches on the digits.

    python -m benchmarks.audit

One release, claimed epsilon 1 at delta 1e-5. Minutes; needs no data set.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlog.audit.canary import Audit, Fault, run_audit
from fedlog.experiments.run.execute import execute, made_with
from fedlog.privacy.guarantee import Budget, Trust, Unit
from fedlog.settings.spec import RunSpec

RECORDS = Path(__file__).parent / "records"
BUDGET = Budget(1.0, 1e-5)
AUDITS = [
    *(Audit(unit, BUDGET, trust) for unit in (Unit.RECORD, Unit.CLIENT) for trust in (Trust.CENTRAL, Trust.LOCAL)),
    *(Audit(unit, BUDGET, fault=fault) for unit in (Unit.RECORD, Unit.CLIENT) for fault in Fault if fault != "none"),
    Audit(Unit.PAPER, BUDGET),
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


def main(out: Path = RECORDS, trials: int = 20_000) -> None:
    """Run, print and write `audit.json`."""
    findings: list[dict[str, Any]] = []
    for audit in AUDITS:
        finding = run_audit(replace(audit, trials=trials))
        print(finding)
        findings.append(finding.as_json())
    with tempfile.TemporaryDirectory() as folder:
        summary = execute(DP_SGD, Path(folder) / "run")
    print(f"DP-SGD on the digits: {100 * summary.accuracy_mean_over_clients:.1f} %")
    found = {
        "audits": findings,
        "dp_sgd_digits": {"accuracy": summary.accuracy_mean_over_clients, "promise": summary.privacy},
        "made_with": made_with(),
        "command": "python -m benchmarks.audit",
    }
    (out / "audit.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
