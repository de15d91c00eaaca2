"""All classes at once, the published protocol: which map and head, chosen on validation records, and its test accuracy.

    FEDLOG_DATA=... python -m benchmarks.one_exchange_all_classes cifar10 --body pretrained:efficientnet-lite0:224

A tenth of the training images are set aside to choose on. Sums add up, so the chosen head is then solved from the sums
of both parts: the ones that all clients together send. Test images are looked at once, for the chosen head and for the
plain LDA beside it. `fedlog run` with the command in the record repeats the chosen one.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.one_exchange_sites import logits
from fedlog.core.heads.gaussian import shared_covariance
from fedlog.core.heads.moments import Detail, Moments
from fedlog.core.heads.ridge import ridge_head
from fedlog.core.keys import Key
from fedlog.data.catalog import DataSpec, load_federation
from fedlog.experiments.run.execute import made_with
from fedlog.models.encoders.federation import encode_federation
from fedlog.models.encoders.maps import parse_map

SHARES = (None, 0.003, 0.01, 0.03, 0.1, 0.3)
STRENGTHS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
HELD_OUT = 10  # one in so many


def solve(head: str, setting: float | None, moments: Moments) -> Tensor:
    """The head of that kind."""
    if head == "fed-lda":
        return shared_covariance(moments, setting)
    return ridge_head(moments, 0.01 if setting is None else setting)


def accuracy(head: Tensor, features: Tensor, labels: Tensor) -> float:
    """In percent, among all classes."""
    return 100 * float((logits(head, features).argmax(1) == labels).double().mean())


def main() -> None:
    """Choose, judge once, print and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=["cifar10", "cifar100"])
    parser.add_argument("--body", default="pretrained:efficientnet-lite0:128")
    parser.add_argument("--maps", default="none,unit,power:0.5,power:0.5+unit", help="to choose among, by commas")
    parser.add_argument("--out", type=Path, default=Path("results/one-exchange-all-classes"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = encode_federation(load_federation(DataSpec(args.data)), args.body)
    x, y = found.train.inputs, found.train.labels
    order = torch.randperm(len(y), generator=Key(0).child("choose a head").torch())
    held, kept = order[: len(y) // HELD_OUT], order[len(y) // HELD_OUT :]
    tried, best = [], (0.0, "", "", None, None)
    for name in args.maps.split(","):
        phi = x
        for part in () if name == "none" else name.split("+"):
            phi = parse_map(part, phi.shape[1])(phi)
        parts = [Moments.of(phi[rows], y[rows], found.n_class, Detail.SECOND) for rows in (kept, held)]
        for head, settings in (("fed-lda", SHARES), ("fed-ridge", STRENGTHS)):
            for setting in settings:
                right = accuracy(solve(head, setting, parts[0]), phi[held], y[held])
                tried.append({"map": name, "head": head, "setting": setting, "validation_accuracy": right})
                print(tried[-1], flush=True)
                if right > best[0]:
                    best = (right, name, head, setting, parts[0] + parts[1])  # type: ignore[assignment]
        if name == "none":
            plain = accuracy(solve("fed-lda", None, parts[0] + parts[1]), found.test.inputs, found.test.labels)
    right, name, head, setting, moments = best
    assert isinstance(moments, Moments)
    phi = found.test.inputs
    for part in () if name == "none" else name.split("+"):
        phi = parse_map(part, phi.shape[1])(phi)
    chosen = accuracy(solve(head, setting, moments), phi, found.test.labels)
    body = args.body if name == "none" else f"{args.body}+{name}"
    told = "" if setting is None else f" --set {'share' if head == 'fed-lda' else 'strength'}={setting}"
    record: dict[str, Any] = {
        "command": f"python -m benchmarks.one_exchange_all_classes {args.data} --body {args.body} --maps {args.maps}",
        "data": args.data,
        "body": args.body,
        "chosen": {"map": name, "head": head, "setting": setting, "validation_accuracy": right},
        "test_accuracy": chosen,
        "test_accuracy_of_plain_lda": plain,
        "repeat": f"fedlog run --data {args.data} --method {head} --body {body}{told}",
        "tried": tried,
        "made_with": made_with(),
    }
    print({key: record[key] for key in ("chosen", "test_accuracy", "test_accuracy_of_plain_lda")})
    args.out.mkdir(parents=True, exist_ok=True)
    named = f"{args.data}-{args.body.removeprefix('pretrained:').replace(':', '-')}.json"
    (args.out / named).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
