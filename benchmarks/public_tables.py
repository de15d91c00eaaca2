"""`fedlog compare` on public tables, each cut into unequal sites: the output that the documentation shows.

    python -m benchmarks.public_tables

Writes results/worth-federating/NAME.txt, what the command printed, and NAME.json, the same as values. UCI HAR must be
there (`fedlog data fetch har`); the other tables come with scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from sklearn import datasets

from fedlog.core.keys import Key
from fedlog.data.public_data_sets import find_data_folder
from fedlog.data.schema_draft import DraftOptions, draft_schema
from fedlog.data.undivided_data import load_har
from fedlog.engine.software import list_software_versions

OUT = Path("results/worth-federating")
SETTINGS = ("--label", "outcome", "--site-column", "site", "--quick", "--quiet")


@dataclass(frozen=True)
class PublicTable:
    """A table with columns `site` and `outcome`; rows of one group of the group column stay together."""

    make: Callable[[], pl.DataFrame]
    more: tuple[str, ...] = ("--seeds", "20")
    group: str | None = None


def _load_scikit_learn_table(name: str, sites: dict[str, int]) -> pl.DataFrame:
    """Load a table of scikit-learn in shuffled order; the first rows are for the first site."""
    found = getattr(datasets, f"load_{name}")()
    rows = Key(0).child("table", name.replace("_", "-")).numpy().permutation(len(found.target))[: sum(sites.values())]
    columns = {str(column).replace(" ", "_"): found.data[rows, at] for at, column in enumerate(found.feature_names)}
    labels = [str(found.target_names[value]) for value in found.target[rows]]
    return pl.DataFrame({**columns, "site": np.repeat(list(sites), list(sites.values())), "outcome": labels})


def wine() -> pl.DataFrame:
    """The wine table: 178 wines of three growers."""
    return _load_scikit_learn_table("wine", {"north": 106, "south": 53, "east": 19})


def digits() -> pl.DataFrame:
    """A table of 700 of the 1797 handwritten digits; every site has all ten classes."""
    return _load_scikit_learn_table("digits", {"north": 250, "south": 150, "east": 100, "west": 100, "centre": 100})


def digits_by_label() -> pl.DataFrame:
    """A table of all 1797 digits; every site has some of the ten classes, and is judged on these alone."""
    table = _load_scikit_learn_table("digits", {"all": 1797})
    site_of = {"0": "north", "1": "north", "2": "north", "3": "south", "4": "south", "5": "east", "6": "east"}
    sites = [site_of.get(label, "west") for label in table["outcome"]]
    return table.with_columns(pl.Series("site", sites))


def har_by_people() -> pl.DataFrame:
    """The table of UCI HAR: 10299 windows of 30 people in four groups, with five figures for each of nine signals."""
    found = load_har(find_data_folder(None))
    signals = np.concatenate([part.inputs.numpy() for part in (found.train, found.test)])
    labels = np.concatenate([part.labels.numpy() for part in (found.train, found.test)])
    people = np.concatenate([np.asarray(part.users) for part in (found.train, found.test)])
    figures = {
        "mean": signals.mean(-1),
        "std": signals.std(-1),
        "lowest": signals.min(-1),
        "highest": signals.max(-1),
        "change": np.abs(np.diff(signals, axis=-1)).mean(-1),
    }
    columns = {f"{name}_{at}": values[:, at].round(5) for name, values in figures.items() for at in range(9)}
    order = np.unique(people)[Key(0).child("table", "har").numpy().permutation(30)]
    place = np.argsort(np.argsort(order))[np.searchsorted(np.unique(people), people)]
    sites = np.array(["north", "south", "east", "west"])[np.searchsorted([12, 20, 26], place, side="right")]
    outcome = [found.class_names[label] for label in labels]
    return pl.DataFrame({**columns, "person": [f"p{person}" for person in people], "site": sites, "outcome": outcome})


TABLES = {
    "wine": PublicTable(wine),
    "digits": PublicTable(digits),
    "digits-by-label": PublicTable(digits_by_label),
    "har-by-people": PublicTable(har_by_people, (), "person"),
}


def main() -> None:
    """Run `fedlog compare` on each table, and write its output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", choices=TABLES, action="append", help="only this one; repeatable")
    args = parser.parse_args()
    made = list_software_versions()  # before the first file is written, which would count as a change
    OUT.mkdir(parents=True, exist_ok=True)
    for name in args.table or TABLES:
        with tempfile.TemporaryDirectory() as folder:
            command = ["fedlog", "compare", "--data", f"sites:{name}.csv", *SETTINGS, *write_table(name, Path(folder))]
            start = [sys.executable, "-m", "fedlog", *command[1:], "--out", "runs"]
            printed = subprocess.run(start, cwd=folder, check=True, capture_output=True, text=True).stdout
            values = subprocess.run([*start, "--json"], cwd=folder, check=True, capture_output=True, text=True).stdout
        (OUT / f"{name}.txt").write_text(f"$ {' '.join(command)}\n{printed}")
        record = {"command": " ".join(command), "made_with": made, **json.loads(values)}
        (OUT / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(printed, flush=True)


def write_table(name: str, folder: Path) -> list[str]:
    """Write the table, and a schema where rows of one group stay together; return the flags that name them."""
    wanted = TABLES[name]
    table = wanted.make()
    table.write_csv(folder / f"{name}.csv")
    if wanted.group is None:
        return [*wanted.more]
    without_site = folder / "without-site.csv"
    table.drop("site").write_csv(without_site)
    (folder / f"{name}.toml").write_text(draft_schema(without_site, DraftOptions("outcome", wanted.group)))
    return [*wanted.more, "--schema", f"{name}.toml"]


if __name__ == "__main__":
    main()
