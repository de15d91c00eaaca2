"""`fed-regression` as runs on two real tables in unequal sites: error, and how often 90 % intervals hold.

    python -m benchmarks.regression_runs --record results/one-exchange-sites/regression-runs.json

Twenty seeds of `fedlog run --data diabetes --method fed-regression` and of `wine-alcohol`: three sites, each half as
large as the one before, all judged on the same quarter of the rows; without privacy, and with record privacy under
central noise. Features in a private run are scaled so that no row is clipped: `identity+scale:1/sqrt(columns)`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedlog.data.public_tables import NUMBER_TABLES
from fedlog.engine.software import list_software_versions
from fedlog.experiments.run.execute import RunFilesToKeep, execute
from fedlog.settings.execution import BackendChoice
from fedlog.settings.spec import RunSpec

SEEDS = range(20)
EPSILONS = (1.0, 8.0)


def list_variants(data: str) -> dict[str, RunSpec]:
    """The runs to compare, by name."""
    plain = RunSpec(data=data, method="fed-regression", backend=BackendChoice.LOOP)
    columns = len(NUMBER_TABLES[data].ranges) - 1
    private: dict[str, Any] = {"privacy": "record", "delta": 1e-5, "clip": "l2:1", "trust": "central"}
    body = f"identity+scale:{math.floor(1000 / math.sqrt(columns)) / 1000}"
    found = {"no privacy": plain}
    for epsilon in EPSILONS:
        found[f"epsilon {epsilon:g}"] = RunSpec(
            data=data, method="fed-regression", body=(body,), epsilon=epsilon, backend=BackendChoice.LOOP, **private
        )
    return found


def main() -> None:
    """Run, print and, where asked, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    tables: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        for data in NUMBER_TABLES:
            for name, spec in list_variants(data).items():
                found = []
                for seed in SEEDS:
                    folder = Path(place) / data / name / str(seed)
                    summary = execute(replace(spec, seed=seed), folder, keep=RunFilesToKeep.RECORDS_ONLY)
                    assert summary.regression is not None
                    found.append(summary.regression)
                row = {
                    "body": find_body(spec),
                    "rmse": float(np.mean([each["rmse_mean_over_clients"] for each in found])),
                    "rmse_of_seeds": [each["rmse_mean_over_clients"] for each in found],
                    "inside_90": float(np.mean([each["inside_mean_over_clients"] for each in found])),
                    "inside_90_of_seeds": [each["inside_mean_over_clients"] for each in found],
                }
                tables.setdefault(data, {})[name] = row
                print(data, name, {key: round(row[key], 3) for key in ("rmse", "inside_90")}, flush=True)
    if args.record is not None:
        command = f"python -m benchmarks.regression_runs --record {args.record}"
        record = {"command": command, "seeds": len(SEEDS), "tables": tables, "made_with": list_software_versions()}
        args.record.parent.mkdir(parents=True, exist_ok=True)
        args.record.write_text(json.dumps(record, indent=1) + "\n")


def find_body(spec: RunSpec) -> str:
    """The body of a run; the data set's default if none is given."""
    return spec.body[0] if spec.body else "identity"


if __name__ == "__main__":
    main()
