"""Choose a map and a head for all classes on validation records, as published, and measure the test accuracy.

    FEDLOG_DATA=... python -m benchmarks.one_exchange_all_classes cifar10 --body pretrained:efficientnet-lite0:224

A tenth of the training images are set aside to choose on. Sums add up, so the chosen head is then solved from the sums
of both parts: the ones that all clients together send. Test images are looked at once, for the chosen head and for the
plain LDA beside it. `fedlog run` with the command in the record repeats the chosen one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.one_exchange_sites import compute_logits
from fedlog.core.heads.gaussian import solve_linear_discriminant, solve_nearest_mean_head
from fedlog.core.heads.ridge import solve_ridge_head
from fedlog.core.keys import Key
from fedlog.core.map_head import solve_head
from fedlog.core.packed_matrix import count_triangle_entries
from fedlog.core.posterior import Prior
from fedlog.core.stats import Detail, Moments
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation
from fedlog.engine.software import list_software_versions
from fedlog.models.encoders.federation import encode_federation
from fedlog.models.encoders.names import make_encoder_body, split_name

# Head -> the settings to choose among; None is the method's own default, for LDA the closed form.
HEADS: dict[str, tuple[float | None, ...]] = {
    "fed-lda": (None, 0.003, 0.01, 0.03, 0.1, 0.3),
    "fed-ridge": (1e-5, 1e-4, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3),
    "fedlog-once": (None,),
    "fed-ncm": (None,),
}
MAPS = "none,unit,power:0.5,power:0.5+unit,expand:4096,power:0.5+expand:4096,project:256+buckets:8"
HELD_OUT = 10  # one in so many
CHUNK = 4096


@dataclass(frozen=True)
class Choice:
    """One feature map and one head with its setting, and the accuracy on validation records."""

    map: str
    head: str
    setting: float | None
    validation_accuracy: float


def solve(head: str, setting: float | None, moments: Moments) -> Tensor:
    """The head of that kind."""
    if head == "fed-lda":
        return solve_linear_discriminant(moments, setting)
    if head == "fed-ridge":
        assert setting is not None
        return solve_ridge_head(moments, setting)
    if head == "fed-ncm":
        return solve_nearest_mean_head(moments.statistics)
    return solve_head(Prior().posterior(moments.statistics)).weights


def name_mapped(body: str, map_name: str) -> str:
    """The body's name with the map behind it."""
    return body if map_name == "none" else f"{body}+{map_name}"


def map_in_parts(body: str, features: Tensor) -> Iterator[Tensor]:
    """Yield the features after the maps of the body, in parts, because expanded features are many times as wide."""
    parts = split_name(body)
    assert parts is not None
    maps = make_encoder_body(parts, tuple(features.shape[1:])).maps
    for phi in torch.split(features, CHUNK):
        yield maps(phi)


def sum_moments(body: str, features: Tensor, labels: Tensor, n_class: int) -> Moments:
    """The moments of all records after the maps of the body."""
    parts = zip(map_in_parts(body, features), torch.split(labels, CHUNK), strict=True)
    return reduce(add, (Moments.from_records(phi, marks, n_class, Detail.SECOND) for phi, marks in parts))


def measure_accuracies(heads: list[Tensor], body: str, features: Tensor, labels: Tensor) -> list[float]:
    """The accuracy of each head among all classes, in percent."""
    right = torch.zeros(len(heads), dtype=torch.float64)
    for phi, marks in zip(map_in_parts(body, features), torch.split(labels, CHUNK), strict=True):
        right += torch.tensor([float((compute_logits(head, phi).argmax(1) == marks).sum()) for head in heads])
    return [100 * float(each) / len(labels) for each in right]


def choose(found: Federation, body: str, maps: list[str]) -> tuple[list[Choice], Choice, Moments]:
    """Try all maps and heads; return all choices, the best choice, and the training records' moments under its map."""
    x, y = found.train.inputs, found.train.labels
    order = torch.randperm(len(y), generator=Key(0).child("choose a head").torch())
    held, kept = order[: len(y) // HELD_OUT], order[len(y) // HELD_OUT :]
    tried: list[Choice] = []
    best, everyone = None, None
    for name in maps:
        whole = name_mapped(body, name)
        own, other = (sum_moments(whole, x[rows], y[rows], found.n_class) for rows in (kept, held))
        wanted = [(head, setting) for head, settings in HEADS.items() for setting in settings]
        right = measure_accuracies([solve(head, setting, own) for head, setting in wanted], whole, x[held], y[held])
        rows = [Choice(name, *each, score) for each, score in zip(wanted, right, strict=True)]
        print(*rows, sep="\n", flush=True)
        tried += rows
        leader = max(rows, key=lambda row: row.validation_accuracy)
        if best is None or leader.validation_accuracy > best.validation_accuracy:
            best, everyone = leader, own + other
    assert best is not None
    assert everyone is not None
    return tried, best, everyone


def describe(data: str, body: str, maps: str) -> dict[str, Any]:
    """The record: what was tried, what was chosen, and its accuracy on test images."""
    found = encode_federation(load_federation(DataSpec(data)), body)
    test, labels = found.test.inputs, found.test.labels
    tried, best, moments = choose(found, body, maps.split(","))
    named = name_mapped(body, best.map)
    (chosen,) = measure_accuracies([solve(best.head, best.setting, moments)], named, test, labels)
    simple = sum_moments(body, found.train.inputs, found.train.labels, found.n_class)
    (plain,) = measure_accuracies([solve("fed-lda", None, simple)], body, test, labels)
    told = "" if best.setting is None else f" --set {'share' if best.head == 'fed-lda' else 'strength'}={best.setting}"
    sums = found.n_class * (1 + moments.width)
    second = count_triangle_entries(moments.width) if best.head in ("fed-lda", "fed-ridge") else 0
    return {
        "command": f"python -m benchmarks.one_exchange_all_classes {data} --body {body} --maps {maps}",
        "data": data,
        "body": body,
        "chosen": vars(best),
        "megabytes_up_a_client_as_float32": 4 * (sums + second) / 1e6,
        "test_accuracy": chosen,
        "test_accuracy_of_plain_lda": plain,
        "repeat": f"fedlog run --data {data} --method {best.head} --body {named}{told}",
        "tried": [vars(each) for each in tried],
        "made_with": list_software_versions(),
    }


def main() -> None:
    """Choose, judge once, print and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["cifar10", "cifar100"])
    parser.add_argument("--body", default="pretrained:efficientnet-lite0:128")
    parser.add_argument("--maps", default=MAPS, help="to choose among, by commas")
    parser.add_argument("--out", type=Path, default=Path("results/one-exchange-all-classes"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    record = describe(args.data, args.body, args.maps)
    print({key: record[key] for key in ("chosen", "test_accuracy", "test_accuracy_of_plain_lda")})
    args.out.mkdir(parents=True, exist_ok=True)
    named = f"{args.data}-{args.body.removeprefix('pretrained:').replace(':', '-')}.json"
    (args.out / named).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
