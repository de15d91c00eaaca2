"""The demo: a server and three sites on this machine, with real records, certificates, keys and processes.

The records are scikit-learn's copy of the handwritten digits of the UCI repository (43 people, 8x8 grey values). They
are dealt out so that the sites have different shares of each digit; half of every site's rows are test rows. In a real
federation the folders of the server and of the sites are on different machines; here they are all in one folder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import torch
from sklearn.datasets import load_digits

from fedlog.core.keys import Key
from fedlog.data.partition import divide_by_dirichlet
from fedlog.data.schema import Feature, FeatureKind, Schema
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite
from fedlog.flower.ops.processes import Say
from fedlog.flower.protocol.plan import Plan

# Each site, with the body that it chose.
SITES: Mapping[str, str] = {"east": "mlp:32", "north": "mlp:64,32", "south": "mlp:128,64,32"}
PIXELS = tuple(f"row{row}_column{column}" for row in range(8) for column in range(8))
# Unequal shares of each digit. In the simulator the accuracy on validation rows rises for four rounds and stays there.
ALPHA, HOLD_OUT = 0.5, "0.2,0.5"


def write_tables(folder: Path, seed: int) -> dict[str, Path]:
    """Write each site's table as a CSV file, and return the files by site."""
    bunch = load_digits()
    labels = torch.from_numpy(bunch.target)
    columns = {name: bunch.data[:, at] for at, name in enumerate(PIXELS)}
    frame = pl.DataFrame(columns | {"digit": list(map(str, bunch.target))})
    # The function deals out training and test rows; the sites split their rows themselves, so one of the two is enough.
    dealt = divide_by_dirichlet(
        labels, labels, clients=len(SITES), alpha=ALPHA, n_class=10, key=Key(seed).child("demo")
    )
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name, rows in zip(SITES, dealt.train, strict=True):
        paths[name] = folder / f"{name}.csv"
        frame[rows.tolist()].write_csv(paths[name])
    return paths


def make_demo_schema() -> Schema:
    """The schema on which the three sites agree."""
    return Schema("digit", tuple(map(str, range(10))), tuple(Feature(name, FeatureKind.NUMERIC) for name in PIXELS))


def run_demo(root: Path, rounds: int, seed: int, say: Say) -> dict[str, Any]:
    """Run the demo, end every process, and return the report: sites, rounds, bits, wire bytes and seconds."""
    start = time.monotonic()
    say(f"everything in one place, on the loopback alone: {root}")
    say("in a real federation the server and each site have a machine of their own; see docs/deploy.md")
    tables = write_tables(root / "tables", seed)
    sites = {name: LocalSite(tables[name], body, HOLD_OUT) for name, body in SITES.items()}
    outcome = LocalFederation.create(root, make_demo_schema(), sites).run(Plan("demo", rounds=rounds, seed=seed), say)
    return {
        "sites": [
            {key: site[key] for key in ("name", "body", "accuracy", "local_only_accuracy", "kept", "test_records")}
            for site in outcome.report["sites"]
        ],
        **outcome.count_traffic(),
        "seconds": round(time.monotonic() - start, 1),
        "folder": str(root),
    }
