"""`fedlog compare` on scikit-learn's tables, each cut into unequal sites: the output that the documentation shows.

    python -m benchmarks.public_tables

Writes results/worth-federating/NAME.txt, what the command printed, and NAME.json, the same as values.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn import datasets

from fedlog.core.keys import Key
from fedlog.experiments.run.execute import made_with

OUT = Path("results/worth-federating")
# Rows of each site, in the order of a shuffle of the table.
TABLES: dict[str, tuple[Callable[[], Any], dict[str, int]]] = {
    "wine": (datasets.load_wine, {"north": 106, "south": 53, "east": 19}),
    "breast-cancer": (datasets.load_breast_cancer, {"north": 341, "south": 171, "east": 57}),
    "digits": (datasets.load_digits, {"north": 250, "south": 150, "east": 100, "west": 100, "centre": 100}),
}
SETTINGS = ("--label", "outcome", "--site-column", "site", "--seeds", "5", "--quick", "--quiet")


def write_table(name: str, folder: Path) -> Path:
    """The table with a column that names each row's site."""
    load, sites = TABLES[name]
    found = load()
    rows = Key(0).child("table", name).numpy().permutation(len(found.target))[: sum(sites.values())]
    columns = {str(column).replace(" ", "_"): found.data[rows, at] for at, column in enumerate(found.feature_names)}
    labels = [str(found.target_names[value]) for value in found.target[rows]]
    of_site = np.repeat(list(sites), list(sites.values()))
    path = folder / f"{name}.csv"
    pl.DataFrame({**columns, "site": of_site, "outcome": labels}).write_csv(path)
    return path


def main() -> None:
    """Compare on each table, and write what was printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", choices=TABLES, action="append", help="only this one; repeatable")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    for name in args.table or TABLES:
        with tempfile.TemporaryDirectory() as folder:
            path = write_table(name, Path(folder))
            command = ["fedlog", "compare", "--data", f"sites:{path.name}", *SETTINGS, "--out", "runs"]
            start = [sys.executable, "-m", "fedlog.cli.main", *command[1:]]
            printed = subprocess.run(start, cwd=folder, check=True, capture_output=True, text=True).stdout
            values = subprocess.run([*start, "--json"], cwd=folder, check=True, capture_output=True, text=True).stdout
        (OUT / f"{name}.txt").write_text(f"$ {' '.join(command)}\n{printed}")
        record = {"command": " ".join(command), "made_with": made_with(), **json.loads(values)}
        (OUT / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(printed, flush=True)


if __name__ == "__main__":
    main()
