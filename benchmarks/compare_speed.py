"""Time `fedlog compare` on a table of 10,000 rows at three sites.

    python -m benchmarks.compare_speed --quick          # two methods beside training alone and pooling, five seeds
    python -m benchmarks.compare_speed [--seeds 5]      # all six methods

The whole command is timed, its start included. On a busy machine the time on the clock says little, so processor
seconds and the load are recorded too. Writes results/compare-speed/NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from fedlog.core.keys import Key
from fedlog.engine.software import list_software_versions

OUT = Path("results/compare-speed")
SITES = {"north": 6000, "south": 3000, "east": 1000}
COLUMNS, CLASSES = 20, 3


def write_table(path: Path) -> None:
    """Write a table with three classes and twenty columns."""
    draw = Key(0).child("compare-speed").numpy()
    labels = draw.integers(0, CLASSES, sum(SITES.values()))
    rows = 0.5 * draw.normal(size=(CLASSES, COLUMNS))[labels] + draw.normal(size=(len(labels), COLUMNS))
    columns = {f"x{at}": rows[:, at] for at in range(COLUMNS)}
    sites = np.repeat(list(SITES), list(SITES.values()))
    pl.DataFrame({**columns, "site": sites, "outcome": [f"c{label}" for label in labels]}).write_csv(path)


def main() -> None:
    """Time the command, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="with --quick")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    args = parser.parse_args()
    made = list_software_versions()
    command = ["fedlog", "compare", "--data", "sites:rows.csv", "--label", "outcome", "--site-column", "site"]
    command += ["--seeds", str(args.seeds), *(["--quick"] if args.quick else []), "--quiet", "--jobs", "2"]
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder) / "rows.csv")
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = [sys.executable, "-m", "fedlog", *command[1:], "--json"]
        told = json.loads(subprocess.run(done, cwd=folder, check=True, capture_output=True, text=True).stdout)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    computing = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    record = {
        "command": " ".join(command),
        "made_with": made,
        "rows": SITES,
        "methods": [each["label"] for each in told["methods"]],
        "seeds": args.seeds,
        "seconds": round(seconds, 1),
        "seconds_of_computing": round(computing, 1),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "notes": told["notes"],
        "advice": told["advice"]["sentence"],
    }
    OUT.mkdir(parents=True, exist_ok=True)
    name = f"{'quick' if args.quick else 'full'}-{args.seeds}-seeds"
    (OUT / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
