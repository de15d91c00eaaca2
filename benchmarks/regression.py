"""Measure Bayesian linear regression from sums on two real tables in unequal sites: error, and coverage of intervals.

    python -m benchmarks.regression --record results/one-exchange-sites/regression.json

Diabetes (442 rows, scikit-learn's copy) and the alcohol of wines by their other twelve columns (178 rows). Three sites
hold 60, 30 and 10 % of the training rows; a quarter of all rows are for testing. Private: record privacy with central
noise, rows scaled by public ranges and clipped to length 1.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, load_wine
from torch import Tensor

from fedlog.core.clip import L2Clip
from fedlog.core.heads.regression import LinearPosterior, solve_regression, sum_regression_moments
from fedlog.core.keys import Key
from fedlog.core.stats import Detail, Moments
from fedlog.engine.software import list_software_versions
from fedlog.privacy.guarantee import Budget, Calibration, Trust, Unit
from fedlog.privacy.protection import ContributionBound, make_protection
from fedlog.wire.message import Kind, Message, make_contribution

SEEDS = range(20)
SHARES = (0.6, 0.3, 0.1)
EPSILONS = (1.0, 8.0)


def load_tables() -> dict[str, tuple[Tensor, Tensor]]:
    """Features and targets of each table, in their own units."""
    diabetes, wine = load_diabetes(scaled=False), load_wine()
    return {
        "diabetes": (torch.from_numpy(diabetes.data), torch.from_numpy(diabetes.target)),
        "wine alcohol": (torch.from_numpy(wine.data[:, 1:]), torch.from_numpy(wine.data[:, 0])),
    }


def add_privacy_noise(x: Tensor, y: Tensor, epsilon: float, seed: int) -> tuple[Moments, float]:
    """The moments with the privacy noise of one release, and the std of the noise."""
    width = x.shape[1] + 1
    guard = make_protection(
        Budget(epsilon, 1e-5),
        unit=Unit.RECORD,
        trust=Trust.CENTRAL,
        calibration=Calibration.EXACT,
        bound=ContributionBound(L2Clip(1.0)),
        releases=1,
        statistics_shape=(1, 1 + width),
        clients=1,
        detail=Detail.SECOND,
    )
    joined = torch.cat([x, y[:, None]], dim=1)
    exact = guard.sum_moments(joined, torch.zeros(len(x), dtype=torch.int64), 1, Detail.SECOND)
    sent = guard.protect(Message(Kind.MOMENTS, exact.arrays), Key(seed).child("noise"))
    total = guard.add_server_noise(
        guard.convert_to_feature_units(make_contribution(sent)), Key(seed).child("server noise")
    )
    return Moments.from_arrays(total.arrays, Detail.SECOND), total.noise_std


def judge(posterior: LinearPosterior, x: Tensor, y: Tensor, unit: float = 1.0) -> dict[str, float]:
    """The root mean squared error in the target's unit, and the share of targets inside their 90 % intervals."""
    low, high = posterior.predict_interval(x, 0.9)
    error = float((posterior.predict(x)[0] - y).square().mean().sqrt()) * unit
    return {"rmse": error, "coverage_90": float(((low <= y) & (y <= high)).double().mean())}


def run_seed(x: Tensor, y: Tensor, seed: int) -> dict[str, dict[str, float]]:
    """The figures of all models for one random split."""
    order = torch.randperm(len(y), generator=Key(seed).child("rows").torch())
    test, train = order[: len(y) // 4], order[len(y) // 4 :]
    cuts = [round(len(train) * share) for share in SHARES[:2]]
    sites = torch.split(train, [*cuts, len(train) - sum(cuts)])
    moments = [sum_regression_moments(x[rows], y[rows]) for rows in sites]
    federated = solve_regression(moments[0] + moments[1] + moments[2])
    pooled = solve_regression(sum_regression_moments(x[train], y[train]))
    gap = float((federated.predict(x[test])[0] - pooled.predict(x[test])[0]).abs().max() / y.abs().max())
    found = {"federated": {**judge(federated, x[test], y[test]), "gap_to_pooled": gap}}
    for name, own in zip(("alone, 60 %", "alone, 30 %", "alone, 10 %"), moments, strict=True):
        found[name] = judge(solve_regression(own), x[test], y[test])
    found["the mean"] = {"rmse": float((y[test] - y[train].mean()).square().mean().sqrt())}
    # Ranges that whoever sets up the federation knows: here those of the table itself, taken as public.
    low, high = x.min(0).values, x.max(0).values
    scaled = (2 * (x - low) / (high - low) - 1) / np.sqrt(x.shape[1])
    middle, half = float(y.max() + y.min()) / 2, float(y.max() - y.min()) / 2
    for epsilon in EPSILONS:
        noisy, std = add_privacy_noise(scaled[train], (y[train] - middle) / half / 2, epsilon, seed)
        figures = judge(solve_regression(noisy, 0.1, std), scaled[test], (y[test] - middle) / half / 2, 2 * half)
        found[f"private, epsilon {epsilon:g}"] = figures
    return found


def main() -> None:
    """Measure, print and, with --record, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    tables_found: dict[str, Any] = {}
    for table, (x, y) in load_tables().items():
        seeds = [run_seed(x.double(), y.double(), seed) for seed in SEEDS]
        rows = {
            name: {key: float(np.mean([found[name][key] for found in seeds])) for key in seeds[0][name]}
            for name in seeds[0]
        }
        tables_found[table] = {"rows": len(y), "columns": x.shape[1], "mean_over_seeds": rows}
        for name, figures in rows.items():
            print(table, name, {key: round(value, 4) for key, value in figures.items()})
    if args.record is not None:
        command = f"python -m benchmarks.regression --record {args.record}"
        record = {
            "command": command,
            "seeds": len(SEEDS),
            "made_with": list_software_versions(),
            "tables": tables_found,
        }
        args.record.parent.mkdir(parents=True, exist_ok=True)
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
