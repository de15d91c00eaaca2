"""Measure how hard the MNIST partition of each seed is, by nearest neighbours among a client's own records.

    python -m benchmarks.partitions

Needs MNIST in the data folder. Uses no training and no method: only which digits meet in which client. A table
uses the first ten seeds; the others say how usual those are.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev

import torch

from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation, Shard
from fedlog.engine.software import list_software_versions

RECORDS = Path(__file__).parent / "records"


def measure_nearest_neighbours(federation: Federation, shard: Shard) -> float:
    """The share of a client's test records whose nearest training record has the same label."""
    known, asked = (
        pool.inputs[positions].flatten(1).float()
        for pool, positions in ((federation.train, shard.train), (federation.test, shard.test))
    )
    nearest = federation.train.labels[shard.train][torch.cdist(asked, known).argmin(1)]
    return float((nearest == federation.test.labels[shard.test]).float().mean())


def main(out: Path = RECORDS, seeds: range = range(100)) -> None:
    """Measure, print and write `partitions.json`."""
    accuracy = {}
    for seed in seeds:
        federation = load_federation(DataSpec("mnist", seed=seed))
        each = [measure_nearest_neighbours(federation, shard) for shard in federation.shards]
        accuracy[str(seed)] = sum(each) / len(each)
        print(f"seed {seed}: {100 * accuracy[str(seed)]:.2f} %")
    found = {
        "mean": mean(accuracy.values()),
        "standard_deviation": stdev(accuracy.values()),
        "accuracy_by_seed": accuracy,
        "made_with": list_software_versions(),
        "command": "python -m benchmarks.partitions",
    }
    (out / "partitions.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
