"""The figures of docs/pretrained.md, and those that the README quotes from them, are those of the records."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def test_the_page_has_the_figures_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(ROOT)
    from benchmarks.one_exchange_tables import BEGIN, END, make_figures

    _, _, rest = (ROOT / "docs" / "pretrained.md").read_text().partition(BEGIN)
    assert rest.partition(END)[0].strip("\n") == make_figures().strip("\n"), (
        "run python -m benchmarks.one_exchange_tables"
    )


def seeds(folder: str) -> list[dict[str, Any]]:
    """The summaries of the runs in a folder of results."""
    return [json.loads(path.read_text()) for path in sorted((RESULTS / folder).glob("seed-*/summary.json"))]


def accuracy(folder: str) -> float:
    """The mean over three seeds, in percent."""
    found = seeds(folder)
    assert len(found) == 3, folder
    return 100 * float(np.mean([run["accuracy_mean_over_clients"] for run in found]))


def gains(data: str, federated: str) -> list[float]:
    """By images of a class, the mean gain of a federated head over the best one alone."""
    rows = json.loads((RESULTS / "one-exchange-sites" / f"alone-{data}.json").read_text())["images_of_a_class"]
    of = [row["accuracy"] for row in rows.values()]
    best = [row["best_alone"] for row in rows.values()]
    return [each[federated]["mean"] - each[name]["mean"] for each, name in zip(of, best, strict=True)]


def signed(values: list[float]) -> str:
    """+1.0, +2.0 and -3.0"""
    words = [f"{value:+.1f}" for value in values]
    return f"{', '.join(words[:-1])} and {words[-1]}"


def sentence_of(page: str) -> str:
    """The line of the page about one exchange."""
    (line,) = [line for line in (ROOT / page).read_text().splitlines() if "one exchange is enough" in line]
    return line


def test_the_readmes_sentence_has_the_figures_of_the_records() -> None:
    line = sentence_of("README.md")
    for expected in (
        f"reach {accuracy('one-exchange-cifar10-224/fed-heads'):.1f} % on the same CIFAR-10 clients",
        f"{signed(gains('cifar10', 'federated FedLog'))} points on CIFAR-10",
        f"{signed(gains('cifar100', 'federated FedLog'))} on CIFAR-100",
    ):
        assert expected in line, expected


def test_the_longer_sentence_has_the_figures_of_the_records() -> None:
    line = sentence_of("docs/what-it-gains.md")
    small = "one-exchange-cifar10-224/fed-heads-principal-240-q8"
    megabits = float(np.mean([run["bits_up"] + run["bits_down"] for run in seeds(small)])) / 1e6
    for expected in (
        f"reach {accuracy('one-exchange-cifar10-224/fed-heads'):.1f} % on the same CIFAR-10 clients",
        f"{accuracy('one-exchange-cifar100/fed-heads'):.1f} % on CIFAR-100",
        f"{accuracy(small):.1f} % on CIFAR-10 with {megabits:.0f} Mb in all",
        f"{signed(gains('cifar10', 'federated FedLog'))} points on CIFAR-10",
        f"{signed(gains('cifar100', 'federated FedLog'))} on CIFAR-100",
    ):
        assert expected in line, expected
    lda = [", ".join(f"{value:+.1f}" for value in gains(data, "federated LDA")) for data in ("cifar10", "cifar100")]
    assert f"LDA {lda[0]} and {lda[1]}" in line
