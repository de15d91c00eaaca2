"""Measure what federating adds to a frozen pretrained body at each site: own rows alone, personal heads, calibration.

    FEDLOG_DATA=... python -m benchmarks.one_exchange_sites alone cifar10
    FEDLOG_DATA=... python -m benchmarks.one_exchange_sites personal cifar10
    FEDLOG_DATA=... python -m benchmarks.one_exchange_sites calibration cifar10

Each writes one JSON file under results/one-exchange-sites, with its command, per seed and with intervals over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from fedlog.core.calibration import (
    bin_by_confidence,
    compute_calibration_error,
    compute_log_loss,
    compute_novelty_scores,
    fit_temperature,
)
from fedlog.core.classification import choose_nearly_best, compute_area_under_curve
from fedlog.core.heads.gaussian import solve_linear_discriminant
from fedlog.core.heads.personal import STRENGTHS, mix_moments, solve_personal_fedlog_head
from fedlog.core.heads.ridge import solve_personal_ridge_head, solve_ridge_head
from fedlog.core.keys import Key
from fedlog.core.laplace import LaplaceHead
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Prior
from fedlog.core.stats import Detail, Moments, Statistics
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation
from fedlog.engine.software import list_software_versions
from fedlog.models.catalog import make_body
from fedlog.models.encoders.federation import encode_federation
from fedlog.models.encoders.names import is_encoder

SEEDS = (0, 1, 2, 3, 4)
IMAGES = (2, 5, 10, 50)
SHARES = (None, 0.1, 0.3, 0.6, 0.9)  # of the identity in LDA's covariance; None: the closed form
VALIDATION = 0.2
DEFAULT_BODY = "pretrained:efficientnet-lite0:128"


def load_encoded_federation(
    data: str, seed: int, body: str, partition: str | None = None, validation: float = 0.0
) -> Federation:
    """Load the federation of that seed, with the body's features as records."""
    alpha = 0.1 if partition == "dirichlet" else None
    spec = DataSpec(data, partition=partition, dirichlet_alpha=alpha, validation_fraction=validation, seed=seed)  # type: ignore[arg-type]
    raw = load_federation(spec)
    if (data, body) in _ENCODED:  # records and encoder are the same for every seed: only who holds them differs
        return _replace_inputs(raw, *_ENCODED[data, body])
    found = encode_federation(raw, body)
    frozen = make_body(body, found.input_shape)
    params = frozen.make_initial_params(Key(seed).child("initial", "body"))

    def features(raw: Tensor) -> Tensor:
        with torch.no_grad():
            parts = [
                frozen.compute_features(params, found.transform.prepare(part), None) for part in torch.split(raw, 2000)
            ]
        return torch.cat(parts)

    train, test = features(found.train.inputs), features(found.test.inputs)
    if is_encoder(body):
        _ENCODED[data, body] = (train, test)
    return _replace_inputs(found, train, test)


_ENCODED: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}


def _replace_inputs(found: Federation, train: Tensor, test: Tensor) -> Federation:
    from dataclasses import replace

    return replace(
        found,
        train=replace(found.train, inputs=train),
        test=replace(found.test, inputs=test),
        input_shape=tuple(train.shape[1:]),
    )


def compute_logits(head: Tensor, features: Tensor) -> Tensor:
    """The logits (n, n_class) of a linear head."""
    return features.to(torch.float64) @ head[:, 1:].mT.to(torch.float64) + head[:, 0].to(torch.float64)


def accuracy(head: Tensor, features: Tensor, labels: Tensor, classes: Tensor) -> float:
    """The accuracy of the head among these classes only."""
    found = classes[compute_logits(head[classes], features).argmax(1)]
    return float((found == labels).double().mean())


def compute_interval(values: list[float]) -> dict[str, float]:
    """The mean over seeds, and the half width of its 95 % t interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return {"mean": mean}
    half = float(student.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return {"mean": mean, "half_width_95": half}


def solve_dual_lda(features: Tensor, labels: Tensor) -> Tensor:
    """`solve_linear_discriminant` for fewer records than features, through the Gram matrix of the records.

    (1 - a) S + a t I with S = C^T C / d: its inverse is (I - C^T (C C^T + a t d / (1 - a))^-1 C) / (a t).
    """
    n_class, x = int(labels.max()) + 1, features.to(torch.float64)
    counts = torch.bincount(labels, minlength=n_class).double()
    means = torch.zeros(n_class, x.shape[1], dtype=torch.float64).index_add_(0, labels, x) / counts[:, None]
    centred = x - means[labels]
    degrees, width = max(1.0, len(x) - n_class), x.shape[1]
    gram = centred @ centred.mT
    squared, trace = float(gram.square().sum()) / degrees**2, float(gram.trace()) / degrees
    above, below = (1 - 2 / width) * squared + trace**2, (degrees + 1 - 2 / width) * (squared - trace**2 / width)
    share = min(1.0, above / below) if below > 0 else 1.0
    target = share * trace / width
    if share == 1 or target == 0:
        weights = means / (target or 1.0)
    else:
        inner = torch.linalg.solve(
            gram + target * degrees / (1 - share) * torch.eye(len(x), dtype=torch.float64), centred @ means.mT
        )
        weights = (means - (centred.mT @ inner).mT) / target
    bias = -(means * weights).sum(1) / 2 + torch.log(counts / counts.sum())
    return torch.cat([bias[:, None], weights], dim=1)


def fit_logistic_regression(features: Tensor, labels: Tensor) -> Tensor:
    """scikit-learn's logistic regression on standardised features, C = 1, as a head.

    Its weights are sums of records, so fewer records than features are fitted in the coordinates that they span.
    """
    x = features.double().numpy()
    centre, spread = x.mean(0), x.std(0) + 1e-6
    scaled = (x - centre) / spread
    axes = np.linalg.qr(scaled.T)[0] if len(x) < x.shape[1] else np.eye(x.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = LogisticRegression(max_iter=200).fit(scaled @ axes, labels.numpy())
    coefficients = fit.coef_ @ axes.T / spread
    bias = fit.intercept_ - coefficients @ centre
    if len(fit.classes_) == 2:
        coefficients, bias = np.concatenate([-coefficients, coefficients]) / 2, np.concatenate([-bias, bias]) / 2
    return torch.from_numpy(np.concatenate([bias[:, None], coefficients], axis=1))


def solve_map_head(features: Tensor, labels: Tensor, n_class: int) -> Tensor:
    """FedLog's head of these records."""
    return solve_head(Prior().posterior(Statistics.from_records(features, labels, n_class))).weights


def draw_few(positions: Tensor, labels: Tensor, images: int, key: Key) -> Tensor:
    """Draw at most `images` positions of each class, with randomness from the key."""
    order = positions[torch.randperm(len(positions), generator=key.torch())]
    return torch.cat([order[labels[order] == y][:images] for y in sorted(set(labels[order].tolist()))])


def choose_share(x: Tensor, y: Tensor, own: list[Tensor], n_class: int) -> float | None:
    """Choose the shrinkage share with the most correct answers over all clients, each on a fifth of its own rows.

    At least one row of every class is held out. Among equal shares, the first is chosen.
    """
    of_class = [[rows[y[rows] == label] for label in y[rows].unique()] for rows in own]
    held = [torch.cat([each[: max(1, len(each) // 5)] for each in parts]) for parts in of_class]
    kept = torch.cat([each[max(1, len(each) // 5) :] for parts in of_class for each in parts])
    moments = Moments.from_records(x[kept], y[kept], n_class, Detail.SECOND)

    def count_right(share: float | None) -> float:
        head = solve_linear_discriminant(moments, share)
        return sum(len(rows) * accuracy(head, x[rows], y[rows], y[rows].unique()) for rows in held)

    return max(SHARES, key=count_right)


def alone(data: str, body: str, of_class: Sequence[int]) -> dict[str, Any]:
    """Compare federated heads with heads of a client's own rows, for each number of images of a class at a client."""
    rows: dict[str, Any] = {}
    for images in of_class:
        scores: dict[str, list[float]] = {}
        shares: list[float | None] = []
        for seed in SEEDS:
            found = load_encoded_federation(data, seed, body)
            x, y = found.train.inputs, found.train.labels
            own = [draw_few(s.train, y, images, Key(seed).child("few", s.name)) for s in found.shards]
            everyone = torch.cat(own)
            moments = Moments.from_records(x[everyone], y[everyone], found.n_class, Detail.SECOND)
            shares.append(choose_share(x, y, own, found.n_class))
            heads = {
                "federated LDA": solve_linear_discriminant(moments),
                "federated LDA, share chosen": solve_linear_discriminant(moments, shares[-1]),
                "federated FedLog": solve_map_head(x[everyone], y[everyone], found.n_class),
            }
            of_clients: dict[str, list[float]] = {}
            for shard, rows_of in zip(found.shards, own, strict=True):
                classes = torch.tensor(sorted(set(y[rows_of].tolist())))
                local = torch.searchsorted(classes, y[rows_of])
                test_x, test_y = found.test.inputs[shard.test], found.test.labels[shard.test]
                for name, head in heads.items():
                    of_clients.setdefault(name, []).append(accuracy(head, test_x, test_y, classes))
                solved: dict[str, Callable[[], Tensor]] = {
                    "alone, logistic regression": lambda: fit_logistic_regression(x[rows_of], local),  # noqa: B023
                    "alone, LDA": lambda: solve_dual_lda(x[rows_of], local),  # noqa: B023
                    "alone, FedLog": lambda: solve_map_head(x[rows_of], local, len(classes)),  # noqa: B023
                }
                for name, solve in solved.items():
                    if len(classes) == 1:  # a client that drew one class twice has nothing to tell apart
                        right = 1.0
                    else:
                        right = float((classes[compute_logits(solve(), test_x).argmax(1)] == test_y).double().mean())
                    of_clients.setdefault(name, []).append(right)
            for name, values in of_clients.items():
                scores.setdefault(name, []).append(100 * float(np.mean(values)))
            print(data, images, seed, {k: round(v[-1], 2) for k, v in scores.items()}, flush=True)
        best = max((n for n in scores if n.startswith("alone")), key=lambda n: float(np.mean(scores[n])))
        gains = [a - b for a, b in zip(scores["federated LDA"], scores[best], strict=True)]
        rows[str(images)] = {
            "accuracy": {name: {**compute_interval(values), "seeds": values} for name, values in scores.items()},
            "best_alone": best,
            "shares_chosen_on_validation_rows": shares,
            "gain_of_federated_lda_over_best_alone": {**compute_interval(gains), "seeds": gains},
        }
    return {"images_of_a_class": rows}


def _solve_personal_heads(kind: str, own: Moments, everyone: Moments, head: Tensor) -> dict[float, Tensor]:
    """The heads of one kind by strength: infinity is the global head, 0 uses only the client's own records."""
    found = {math.inf: head}
    for strength in STRENGTHS:
        if math.isinf(strength):
            continue
        if kind == "fedlog":
            found[strength] = solve_personal_fedlog_head(own.statistics, head, strength)
        elif kind == "lda":
            found[strength] = solve_linear_discriminant(mix_moments(everyone, own, strength))
        else:
            near = strength / own.statistics.total
            found[strength] = solve_personal_ridge_head(own, head, near) if strength else solve_ridge_head(own)
    return found


def personal(data: str, body: str, partition: str | None) -> dict[str, Any]:
    """Compare the head that a site chooses on validation rows with the global head and with its own rows alone."""
    scores: dict[str, dict[str, list[float]]] = {}
    for seed in SEEDS:
        found = load_encoded_federation(data, seed, body, partition, VALIDATION)
        x, y = found.train.inputs, found.train.labels
        sites = [Moments.from_records(x[s.train], y[s.train], found.n_class, Detail.SECOND) for s in found.shards]
        everyone = sites[0]
        for site in sites[1:]:
            everyone = everyone + site
        heads = {
            "fedlog": solve_head(Prior().posterior(everyone.statistics)).weights,
            "lda": solve_linear_discriminant(everyone),
            "ridge": solve_ridge_head(everyone),
        }
        for kind, head in heads.items():
            of: dict[str, list[float]] = {"global": [], "own": [], "alone": []}
            for shard, site in zip(found.shards, sites, strict=True):
                classes = (site.statistics.counts > 0).nonzero()[:, 0]
                held, marks = x[shard.validation], y[shard.validation]
                test_x, test_y = found.test.inputs[shard.test], found.test.labels[shard.test]
                candidates = _solve_personal_heads(kind, site, everyone, head)
                right = [
                    round(accuracy(each, held, marks, classes) * len(held)) if len(held) else 0
                    for each in candidates.values()
                ]
                chosen = list(candidates)[choose_nearly_best(right, len(held))]
                of["global"].append(accuracy(head, test_x, test_y, classes))
                of["own"].append(accuracy(candidates[chosen], test_x, test_y, classes))
                of["alone"].append(accuracy(candidates[0.0], test_x, test_y, classes))
            for name, values in of.items():
                scores.setdefault(kind, {}).setdefault(name, []).append(100 * float(np.mean(values)))
        print(
            data,
            partition,
            seed,
            {k: {n: round(v[-1], 2) for n, v in s.items()} for k, s in scores.items()},
            flush=True,
        )
    rows = {}
    for kind, of in scores.items():
        rows[kind] = {
            **{name: {**compute_interval(values), "seeds": values} for name, values in of.items()},
            "own_minus_global": compute_interval([a - b for a, b in zip(of["own"], of["global"], strict=True)]),
            "own_minus_alone": compute_interval([a - b for a, b in zip(of["own"], of["alone"], strict=True)]),
        }
    return {"partition": partition or "the data set's", "validation_fraction": VALIDATION, "heads": rows}


def calibration(data: str, body: str) -> dict[str, Any]:
    """Measure calibration among a site's own classes, with and without a temperature, and novelty scores."""
    scores: dict[str, dict[str, list[float]]] = {}
    novel: list[float] = []
    drawn: dict[str, Any] = {}
    for seed in SEEDS[:3]:
        found = load_encoded_federation(data, seed, body, None, VALIDATION)
        x, y = found.train.inputs, found.train.labels
        train = torch.cat([s.train for s in found.shards])
        moments = Moments.from_records(x[train], y[train], found.n_class, Detail.SECOND)
        posterior = Prior().posterior(moments.statistics)
        fedlog = solve_head(posterior).weights
        laplace, lda = LaplaceHead(fedlog, posterior.nu), solve_linear_discriminant(moments)
        all_of: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for shard in found.shards:
            classes = torch.tensor(sorted(set(y[shard.train].tolist())))
            held, marks = x[shard.validation], torch.searchsorted(classes, y[shard.validation])
            test_x, test_y = found.test.inputs[shard.test], torch.searchsorted(classes, found.test.labels[shard.test])
            plain = compute_logits(fedlog[classes], test_x)
            found_by = {
                "FedLog, softmax": plain,
                "FedLog, Laplace": laplace.probabilities(test_x)[:, classes].clamp_min(1e-300).log(),
                "FedLog, temperature": plain / fit_temperature(compute_logits(fedlog[classes], held), marks),
                "LDA, softmax": compute_logits(lda[classes], test_x),
                "LDA, temperature": compute_logits(lda[classes], test_x)
                / fit_temperature(compute_logits(lda[classes], held), marks),
            }
            for name, values in found_by.items():
                all_of.setdefault(name, []).append((values, test_y))
            strangers = torch.from_numpy(np.setdiff1d(np.arange(len(found.test)), _select_classes(found, classes)))
            strangers = strangers[:: max(1, len(strangers) // 200)]
            both = (test_x, found.test.inputs[strangers])
            new = torch.cat([compute_novelty_scores(compute_logits(fedlog[classes], each), each) for each in both])
            marks_new = np.array([False] * len(test_x) + [True] * len(strangers))
            novel.append(compute_area_under_curve(new.numpy(), marks_new))
        for name, parts in all_of.items():
            labels = torch.cat([marks for _, marks in parts])
            width = max(values.shape[1] for values, _ in parts)
            stacked = torch.cat([torch.nn.functional.pad(v, (0, width - v.shape[1]), value=-1e9) for v, _ in parts])
            row = scores.setdefault(name, {"accuracy": [], "ece": [], "log_loss": []})
            row["accuracy"].append(100 * float((stacked.argmax(1) == labels).double().mean()))
            row["ece"].append(100 * compute_calibration_error(stacked, labels))
            row["log_loss"].append(compute_log_loss(stacked, labels))
            drawn[name] = [vars(part) for part in bin_by_confidence(stacked, labels)]
        print(data, seed, {n: {k: round(v[-1], 3) for k, v in s.items()} for n, s in scores.items()}, flush=True)
    rows = {name: {key: compute_interval(values) for key, values in of.items()} for name, of in scores.items()}
    return {"rows": rows, "auroc_of_classes_never_seen": float(np.mean(novel)), "reliability_of_last_seed": drawn}


def _select_classes(found: Federation, classes: Tensor) -> np.ndarray[Any, Any]:
    return torch.isin(found.test.labels, classes).nonzero()[:, 0].numpy()


def name_body(body: str) -> str:
    """The body's part in the name of a record's file: its last map, or the side of its images."""
    return body.rpartition("+")[2].removeprefix("pretrained:efficientnet-lite0:").replace(":", "-")


def main() -> None:
    """Compute one table and write its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["alone", "personal", "calibration"])
    parser.add_argument("data", choices=["cifar10", "cifar100", "har"])
    parser.add_argument("--body", default=DEFAULT_BODY)
    parser.add_argument("--images", help="of a class at each client, by commas; for alone (default: 2,5,10,50)")
    parser.add_argument("--partition")
    parser.add_argument("--out", type=Path, default=Path("results/one-exchange-sites"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "alone":
        found = alone(args.data, args.body, [int(each) for each in args.images.split(",")] if args.images else IMAGES)
    elif args.what == "personal":
        found = personal(args.data, args.body, args.partition)
    else:
        found = calibration(args.data, args.body)
    # Where the record was written is of no use to whoever repeats it.
    given = {name: getattr(args, name) for name in ("body", "partition", "images")}
    told = [f"--{name} {value}" for name, value in given.items() if value]
    command = " ".join(["python -m benchmarks.one_exchange_sites", args.what, args.data, *told])
    record = {"command": command, "body": args.body, "data": args.data, "made_with": list_software_versions(), **found}
    args.out.mkdir(parents=True, exist_ok=True)
    suffix = f"-{args.partition}" if args.partition else ""
    suffix += "" if args.body == DEFAULT_BODY else "-" + name_body(args.body)
    (args.out / f"{args.what}-{args.data}{suffix}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
