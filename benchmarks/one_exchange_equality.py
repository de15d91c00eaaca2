"""Measure the difference between the head of the sites' sums and the head of all records, also after a site left.

    python -m benchmarks.one_exchange_equality --record results/one-exchange-sites/equality.json

The handwritten digits of scikit-learn (64 columns, for the quadratic heads 16 of them) in ten unequal sites, float64 as
the server sums them; for `fed-regression` the diabetes table. Each method's own `close` and `step`. The figure is the
largest difference of any entry of the head over the head's largest entry.

What "pooled" means: for all but two methods, the head of the one upload of a site that has all records. `ccvr` trains
its head on features that are drawn from these sums, by the same seed on both sides. `fedcof` and `fedpft` are functions
of the sites' uploads and not of the records behind them, so theirs is the head that one place finds which holds all
uploads as a list: for `fedcof` by the formula of the source, one class mean after the other; for `fedpft` with the
uploads in the opposite order, by the same seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from fedlog.algorithms import registry
from fedlog.algorithms.interface import Algorithm, FeatureSummary, ModelPlan, Work, WorkResult
from fedlog.core.heads.mixtures import fit_mixtures
from fedlog.core.keys import Key
from fedlog.core.stats import Moments
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.engine.software import list_software_versions
from fedlog.models.body import HEAD
from fedlog.wire.message import Message, add_contributions, make_contribution

METHODS = (
    "fedlog-once",
    "fed-ncm",
    "fed-lda",
    "fed-nb",
    "fed-qda",
    "fed-ridge",
    "ccvr",
    "fedcof",
    "fedpft",
    "fed-heads",
    "fed-regression",
)
SITES = 10


def load_scaled_digits() -> tuple[Tensor, Tensor]:
    """The columns of the digits, scaled so that sums are not exact in floating point, and the digit of each record."""
    found = load_digits()
    return torch.from_numpy(found.data / 15), torch.from_numpy(found.target)


def load_diabetes() -> tuple[Tensor, Tensor]:
    """The columns of the diabetes table with the number to predict as the last one, and labels of a single class."""
    train = load_federation(DataSpec("diabetes")).train
    assert train.targets is not None
    joined = torch.cat([train.inputs, train.targets[:, None]], dim=1).double()
    return joined, train.labels


def make_upload(method: Algorithm, x: Tensor, y: Tensor) -> Message:
    """Make the message that a site with these records sends."""
    (exchange,) = method.schedule.round
    n_class: int = method.plan.n_class  # type: ignore[attr-defined]
    moments = Moments.from_records(x, y, n_class, exchange.detail)
    trained = WorkResult({}, moments.statistics, len(y), moments.second)
    if exchange.summary is FeatureSummary.MIXTURES:
        trained = replace(trained, mixtures=fit_mixtures(x, y, n_class, exchange.parts, Key(2)))
    message = method.finish_exchange(exchange.name, {}, Work({}), trained)[1]
    assert message is not None
    return message


def solve(method: Algorithm, uploads: Sequence[Message]) -> dict[str, Tensor]:
    """Solve the head from these uploads; return its parts by name."""
    (exchange,) = method.schedule.round
    state = method.step(
        exchange.name, method.begin(Key(0)), add_contributions([make_contribution(each) for each in uploads])
    )
    return {name: value for name, value in state.items() if name not in ("seed", "sums", "second")}


def solve_fedcof_from_list(uploads: Sequence[Message], gamma: float = 1.0) -> Tensor:
    """FedCOF's head (n_class, 1 + w) by the formula of its source, from the class means of each site, one by one."""
    means = torch.stack([each.arrays[0].double() for each in uploads])
    counts = torch.stack([each.arrays[1].double() for each in uploads])
    n_class, width = means.shape[1:]
    records = counts.sum(0)
    mu = (means * counts[:, :, None]).sum(0) / records[:, None]
    centre = (mu * records[:, None]).sum(0) / records.sum()
    gram = records.sum() * torch.outer(centre, centre)
    for y in range(n_class):
        away = means[:, y] - mu[y]
        holders = int((counts[:, y] > 0).sum())
        scatter = sum(n * torch.outer(row, row) for n, row in zip(counts[:, y], away, strict=True))
        covariance = scatter / max(1, holders - 1) + gamma * torch.eye(width, dtype=torch.float64)
        gram += (records[y] - 1) * covariance
    weights = torch.linalg.solve(gram, (mu * records[:, None]).mT).mT
    weights /= weights.norm(dim=1, keepdim=True)
    return torch.cat([torch.zeros(n_class, 1, dtype=torch.float64), weights], dim=1)


def solve_pooled(method: Algorithm, x: Tensor, y: Tensor, uploads: Sequence[Message]) -> dict[str, Tensor]:
    """The parts of the head computed in one place: from all records, or from the list of all uploads."""
    if method.name == "fedcof":
        return {HEAD: solve_fedcof_from_list(uploads)}
    if method.name == "fedpft":
        return solve(method, uploads[::-1])
    return solve(method, [make_upload(method, x, y)])


def measure_gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of an entry, divided by the largest entry, over all parts of the head."""
    return max(
        float((one[name] - other[name]).abs().max() / other[name].abs().clamp_max(1e30).max())
        for name in other
        if HEAD in other
    )


def main() -> None:
    """Measure, print and, where asked, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in METHODS:
        x, y = load_diabetes() if name == "fed-regression" else load_scaled_digits()
        if name in ("fed-qda", "ccvr"):
            x = x[:, 20:36]
        width, n_class = x.shape[1] - (name == "fed-regression"), int(y.max()) + 1
        method = registry.make_method(name, ModelPlan(n_class, width, ((HEAD,),), n_class * (1 + width)), {})
        # Sites of very different sizes: each is cut off at a square.
        ends = [round(len(y) * ((at + 1) / SITES) ** 2) for at in range(SITES)]
        order = torch.randperm(len(y), generator=Key(1).torch())
        sites = [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        sent = [make_upload(method, x[own], y[own]) for own in sites]
        rest = torch.cat(sites[:-1])
        rows[name] = {
            "all sites": measure_gap(solve(method, sent), solve_pooled(method, x, y, sent)),
            "after the largest left": measure_gap(
                solve(method, sent[:-1]), solve_pooled(method, x[rest], y[rest], sent[:-1])
            ),
        }
        print(name, {key: f"{value:.1e}" for key, value in rows[name].items()}, flush=True)
    if args.record is not None:
        command = f"python -m benchmarks.one_exchange_equality --record {args.record}"
        record = {"command": command, "largest_relative_difference": rows, "made_with": list_software_versions()}
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
