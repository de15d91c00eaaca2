"""Compare the advice of `fedlog compare` with the truth, on synthetic federations of known kinds.

    python -m benchmarks.advice [--draws 2] [--kind NAME]

Each federation is drawn at random: its classes, its sites, its rows. The comparison sees a few dozen to some thousand
rows at each site. The truth is the accuracy of the same models on 2,000 fresh rows at each site, which a real
comparison never has. Writes results/advice/KIND.json, one entry for each federation, with the command and the versions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedlog
from fedlog.core.keys import Key
from fedlog.data.federation import Federation
from fedlog.engine.software import list_software_versions
from fedlog.experiments.compare.advice import WORTH, AdviceKind

OUT = Path("results/advice")
FRESH = 2000  # rows a site that say what is true
COLUMNS, CLASSES = 8, 4
METHODS = ("fedlog", "fedavg")
SEEDS = 4  # every row that is not for test is judged once
SETTINGS: dict[str, Any] = {"rounds": 3, "batch_size": 20, "body": "mlp:16,8", "epochs": 5, "learning_rate": 0.005}

Rows = tuple[NDArray[np.float64], NDArray[np.int64]]
Draw = Callable[[int], Rows]  # so many rows of one site


def _draw_class_means(key: Key, spread: float) -> NDArray[np.float64]:
    return spread * key.child("means").numpy().normal(size=(CLASSES, COLUMNS))


def _make_site(
    means: NDArray[np.float64], key: Key, classes: list[int], change: Callable[[Any], Any] = lambda x: x
) -> Draw:
    """A function that draws rows of one site from Gaussian classes; `change` transforms the site's columns."""
    drawn = iter(range(10**6))

    def draw(rows: int) -> Rows:
        generator = key.child(next(drawn)).numpy()
        labels = np.array(classes)[np.arange(rows) % len(classes)]
        return change(means[labels] + generator.normal(size=(rows, COLUMNS))), labels

    return draw


Sites = dict[str, tuple[int, Draw]]  # how many rows the comparison sees, and how more are drawn


def same_distribution(key: Key, rows: int) -> Sites:
    """Draw five sites of one distribution, which gain from federating."""
    means = _draw_class_means(key, 0.7)
    return {f"s{at}": (rows, _make_site(means, key.child(at), [0, 1, 2, 3])) for at in range(5)}


def enough_rows(key: Key, rows: int) -> Sites:
    """Draw three sites of one distribution whose classes lie far apart, so that no site gains from federating."""
    means = _draw_class_means(key, 1.5)
    return {f"s{at}": (rows, _make_site(means, key.child(at), [0, 1, 2, 3])) for at in range(3)}


def different_labels(key: Key, rows: int) -> Sites:
    """Draw four sites with two of four classes each; a site is judged on its own classes only."""
    means = _draw_class_means(key, 1.0)
    pairs = [[0, 1], [2, 3], [0, 2], [1, 3]]
    return {f"s{at}": (rows, _make_site(means, key.child(at), pair)) for at, pair in enumerate(pairs)}


def different_meanings(key: Key, rows: int) -> Sites:
    """Draw four sites whose columns mean different things: each site permutes them and flips the sign of some."""
    means = _draw_class_means(key, 0.9)

    def change(at: int) -> Callable[[Any], Any]:
        generator = key.child("change", at).numpy()
        order, signs = generator.permutation(COLUMNS), generator.choice([-1.0, 1.0], COLUMNS)
        return lambda values: values[:, order] * signs

    return {f"s{at}": (rows, _make_site(means, key.child(at), [0, 1, 2, 3], change(at))) for at in range(4)}


def one_dominates(key: Key, rows: int) -> Sites:
    """Draw one large site and three with a tenth of its rows, of one distribution; the small sites gain from it."""
    means = _draw_class_means(key, 0.7)
    sizes = (10 * rows, rows, rows, rows)
    return {f"s{at}": (count, _make_site(means, key.child(at), [0, 1, 2, 3])) for at, count in enumerate(sizes)}


Kind = Callable[[Key, int], Sites]
KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (same_distribution, enough_rows, different_labels, different_meanings, one_dominates)
}
# Rows of each site; of each small one where one site dominates.
SIZES: dict[str, tuple[int, int]] = {
    "same_distribution": (60, 300),
    "enough_rows": (200, 1000),
    "different_labels": (100, 600),
    "different_meanings": (100, 600),
    "one_dominates": (40, 150),
}


def judge(kind: str, size: int, number: int) -> dict[str, Any]:
    """The record of one federation: the advice, the truth, and whether they agree."""
    sites = KINDS[kind](Key(number).child(kind, size), size)
    rows = {name: draw(count) for name, (count, draw) in sites.items()}
    fresh = {name: draw(FRESH) for name, (_, draw) in sites.items()}
    found = fedlog.compare(Federation.from_arrays(rows), METHODS, SEEDS, progress=False, recipe="paper", **SETTINGS)
    truth = {method: _measure_true_accuracy(found, method, fresh) for method in found.methods}
    gains = {method: truth[method] - truth["local"] for method in METHODS}
    advice = found.advice
    assert advice.gain is not None
    assert advice.method is not None
    return {
        "size": size,
        "seeds": len(found.runs_of("local")),
        "number": number,
        "rows": {name: count for name, (count, _) in sites.items()},
        "advice": advice.kind.value,
        "method": advice.method,
        "gain": [advice.gain.value, advice.gain.low, advice.gain.high],
        "true_accuracy": truth,
        "true_gain": gains,
        "pays": max(gains.values()) >= WORTH,
        "right": _is_right(advice.kind, gains[advice.method], max(gains.values())),
        "covered": bool((advice.gain.low or 0) <= gains[advice.method] <= (advice.gain.high or 0)),
        "sentence": advice.sentence,
    }


def _is_right(kind: AdviceKind, gain: float, most: float) -> bool | None:
    """Whether the advice is right; None if there was none."""
    if kind is AdviceKind.UNCLEAR:
        return None
    return gain > 0 if kind is AdviceKind.FEDERATE else most < WORTH


def _measure_true_accuracy(found: fedlog.Comparison, method: str, fresh: dict[str, Rows]) -> float:
    shares = [
        float(np.mean(result.models[name].predict(rows) == labels))
        for result in found.runs_of(method)
        for name, (rows, labels) in fresh.items()
    ]
    return float(np.mean(shares))


def describe(folder: Path = OUT) -> list[str]:
    """The rows of the table in docs/worth-federating.md, one for each kind and size, from the records."""
    lines, total = [], [0] * 6
    for kind in KINDS:
        entries = json.loads((folder / f"{kind}.json").read_text())["federations"]
        for size in SIZES[kind]:
            here = [entry for entry in entries if entry["size"] == size]
            right, wrong, none = (sum(entry["right"] is value for entry in here) for value in (True, False, None))
            pays, covered = (sum(entry[name] for entry in here) for name in ("pays", "covered"))
            counts = [len(here), pays, right, wrong, none, covered]
            total = [a + b for a, b in zip(total, counts, strict=True)]
            what = f"{kind.replace('_', ' ')}, {', '.join(str(rows) for rows in here[0]['rows'].values())} rows"
            lines.append(f"| {what} | {' | '.join(map(str, counts))} |")
    return [*lines, f"| **all** | {' | '.join(map(str, total))} |"]


def main() -> None:
    """Judge the advice on each federation of each kind, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2, help="federations of each kind and size")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this kind; repeatable")
    args = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    made = list_software_versions()  # before the first file is written, which would count as a change
    for kind in args.kind or KINDS:
        entries = [
            _print_outcome(kind, judge(kind, size, number)) for size in SIZES[kind] for number in range(args.draws)
        ]
        about = {"kind": kind, "what": KINDS[kind].__doc__, "settings": SETTINGS, "worth": WORTH}
        command = f"python -m benchmarks.advice --draws {args.draws} --kind {kind}"
        record = {**about, "command": command, "made_with": made, "federations": entries}
        (OUT / f"{kind}.json").write_text(json.dumps(record, indent=1) + "\n")


def _print_outcome(kind: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Print the outcome of one federation, and return it."""
    print(kind, entry["size"], entry["number"], entry["advice"], entry["right"], entry["sentence"], flush=True)
    return entry


if __name__ == "__main__":
    main()
