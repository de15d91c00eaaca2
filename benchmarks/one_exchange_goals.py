"""Make the first table of docs/pretrained.md: each goal, the recorded figures, and whether it was reached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedlog.experiments.tables.catalog import find_experiment
from fedlog.experiments.tables.finished_cells import collect_runs
from fedlog.report.documents.bits_page import find_uncompressed_runs

RESULTS, RECORDS = Path("results"), Path("benchmarks/records")
SITES = RESULTS / "one-exchange-sites"
# Published for a frozen ResNet-18, all classes (SAFLe, from its abstract).
PUBLISHED = {"cifar10": ("CIFAR-10", 90.7), "cifar100": ("CIFAR-100", 70.6)}


def make_goals_table() -> list[str]:
    """The lines of the table."""
    rows = [
        *_make_shard_rows(),
        *_make_all_classes_rows(),
        _make_privacy_row(),
        _make_equality_row(),
        *_make_alone_rows(),
        _make_features_row(),
        *_make_demo_rows(),
    ]
    return [
        "| what | goal | found | |",
        "|---|---|---|---|",
        *(
            f"| {what} | {goal} | {found} | {'reached' if reached else 'missed'} |"
            for what, goal, found, reached in rows
        ),
    ]


Row = tuple[str, str, str, bool]


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _read_summaries(folder: str) -> list[dict[str, Any]]:
    return [_read(path) for path in sorted((RESULTS / folder).glob("seed-*/summary.json"))]


def _average(runs: Sequence[dict[str, Any]], key: str = "accuracy_mean_over_clients") -> float:
    return float(np.mean([run[key] for run in runs]))


def _make_shard_rows() -> list[Row]:
    whole = "one-exchange-cifar10-224/fed-heads"
    dense = find_uncompressed_runs(
        "cifar10",
        "fedlog-c",
        *(collect_runs(find_experiment(f"{kind}-cifar10"), RESULTS) for kind in ("bits", "table")),
    )
    spent = float(np.mean([run.compute_cost_to_reach(0.83).bits_both_ways for run in dense.values()]))
    small = find_widest_below(spent)
    found = {name: 100 * _average(_read_summaries(name)) for name in (whole, small, "one-exchange-cifar100/fed-heads")}
    both = f"{found[small]:.2f} % with {_read_bits(small) / 1e6:.1f} Mb"
    best = found["one-exchange-cifar100/fed-heads"]
    return [
        ("CIFAR-10 shards, the head that each site chooses", "97.5 %", f"{found[whole]:.2f} %", found[whole] >= 97.5),
        (
            "the same, with fewer bits than FedLog-C needs to reach 83 % without compression",
            f"97.5 % below {spent / 1e6:.1f} Mb",
            both,
            found[small] >= 97.5,
        ),
        ("CIFAR-100 shards, the head that each site chooses", "87 %", f"{best:.2f} %", best >= 87),
    ]


def find_widest_below(bits: float) -> str:
    """The folder of the runs with principal features that send the most bits below `bits`."""
    folders = (RESULTS / "one-exchange-cifar10-224").glob("fed-heads-principal-*-q8")
    names = sorted((f"{path.parent.name}/{path.name}" for path in folders), key=_read_bits)
    return [name for name in names if _read_bits(name) < bits][-1]


def _read_bits(folder: str) -> float:
    return _average(_read_summaries(folder), "bits_up") + _average(_read_summaries(folder), "bits_down")


def _make_all_classes_rows() -> list[Row]:
    rows = []
    for data, (title, published) in PUBLISHED.items():
        found = [_read(path) for path in sorted((RESULTS / "one-exchange-all-classes").glob(f"{data}-*.json"))]
        # Among bodies and sides too the validation records choose.
        best = max(found, key=lambda record: float(record["chosen"]["validation_accuracy"]))
        told = f"{best['test_accuracy']:.2f} % ({best['body'].removeprefix('pretrained:')})"
        if plain := _read_summaries(f"one-exchange-{data}-224/all-classes-fed-lda"):
            told += f"; plain LDA at 224 pixels {100 * _average(plain):.2f} %"
        rows.append((f"{title}, all classes", f"above {published} %", told, best["test_accuracy"] > published))
    return rows


def _make_privacy_row() -> Row:
    folder = "one-exchange-cifar10-privacy"
    plain, private = (
        100 * _average(_read_summaries(f"{folder}/{name}"))
        for name in ("means-no-noise", "means-distributed-epsilon-1")
    )
    lost = plain - private
    return ("CIFAR-10, epsilon 1, distributed noise", "within 3 points of no noise", f"{lost:.2f} points", lost <= 3)


def _make_equality_row() -> Row:
    rows = _read(SITES / "equality.json")["largest_relative_difference"]
    worst = max(value for row in rows.values() for value in row.values())
    return (
        "largest relative difference of the federated head from the pooled one, also after a site left",
        "at most 1e-10",
        f"{worst:.0e}",
        worst <= 1e-10,
    )


def _make_alone_rows() -> list[Row]:
    rows: list[Row] = []
    for data, images, goal in (("cifar10", "10", 4), ("cifar100", "2", 15), ("cifar100", "5", 7)):
        row = _read(SITES / f"alone-{data}.json")["images_of_a_class"][images]
        best = row["accuracy"][row["best_alone"]]["mean"]
        names = ("LDA", "LDA, share chosen", "FedLog")
        gain = {name: row["accuracy"][f"federated {name}"]["mean"] - best for name in names}
        told = "; ".join(f"{name.replace('share', 'shrinkage')} {value:+.1f}" for name, value in gain.items())
        what = f"{PUBLISHED[data][0]}, {images} images a class, gain over the best head from own rows alone"
        rows.append((what, f"+{goal} points", told, max(gain.values()) >= goal))
    return rows


def _make_features_row() -> Row:
    rates = list(_read(RECORDS / "features.json")["images_a_processor_second_of_one_core"].values())
    ours = rates[-2]  # the last one is the cache
    return (
        "speed of computing features, against plain PyTorch in batches",
        "3 times",
        f"{ours / rates[0]:.1f} times",
        ours >= 3 * rates[0],
    )


def _make_demo_rows() -> list[Row]:
    path = RECORDS / "demo-time.json"
    if not path.exists():
        return []
    ratios = [pair["pretrained"]["wall_seconds"] / pair["plain"]["wall_seconds"] for pair in _read(path)["pairs"]]
    found = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    return [("time of the demo with `--pretrained`, divided by the time without it", "below 1", found, max(ratios) < 1)]
