"""The two demos: a server and three sites on this machine, with real records, certificates, keys and processes.

In a real federation the folders of the server and of the sites are on different machines; here they are all in one
folder. In both demos the sites have different shares of each class.

The first demo has tables. The records are scikit-learn's copy of the handwritten digits of the UCI repository (43
people, 8x8 grey values), and half of every site's rows are test rows.

The demo with images (`--pretrained`) has a frozen pretrained body, and asks the sites for sums of features once. The
images are patches of two photographs that come with scikit-learn, a temple and a flower. A secure sum hides what each
site sends, and noise in the sum protects every record with epsilon 1. The demo also computes sums and a head from all
patches together, without noise. The noise should be the only difference from the federation's sums.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image
from torch import Tensor

from fedlog.core.heads.gaussian import solve_nearest_mean_head
from fedlog.core.keys import Key
from fedlog.core.stats import Detail, Statistics
from fedlog.data.federation import Records
from fedlog.data.partition import divide_by_dirichlet
from fedlog.data.schema import Feature, FeatureKind, Schema
from fedlog.data.site import RowPreparation
from fedlog.engine.protocol import checkpoint
from fedlog.errors import RunError
from fedlog.flower.folders.keys import format_roster_entry, write_roster
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite, RunOutcome
from fedlog.flower.ops.processes import Say
from fedlog.flower.protocol.plan import Plan, make_plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.flower.site.data import load_body, load_data
from fedlog.models.body import HEAD, logits
from fedlog.settings.spec import RunSpec

# Each site, with the body that it chose for the tables.
SITES: Mapping[str, str] = {"east": "mlp:32", "north": "mlp:64,32", "south": "mlp:128,64,32"}
RUN = "demo"
PIXELS = tuple(f"row{row}_column{column}" for row in range(8) for column in range(8))
# Unequal shares of each digit. In the simulator the accuracy on validation rows rises for four rounds and stays there.
TABLES_ALPHA, HOLD_OUT = 0.5, "0.2,0.5"
CLASSES = ("flower", "temple")
PATCH = 24
# Features in 64 directions learned from public images, scaled to length 1: one record then adds little to the sums.
BODY = "pretrained:efficientnet-lite0:64+principal:64+unit"
IMAGES_ALPHA = 2.0


def run_demo(root: Path, rounds: int, seed: int, say: Say) -> dict[str, Any]:
    """Run the demo with tables, end every process, and return the report.

    The report has the sites' results, the number of rounds, the bits of all messages, the bytes between sites and
    server, and the seconds.
    """
    start = time.monotonic()
    _announce_folders(root, say)
    tables = write_site_tables(root / "tables", seed)
    sites = {name: LocalSite(tables[name], body, HOLD_OUT) for name, body in SITES.items()}
    outcome = LocalFederation.create(root, make_table_schema(), sites).run(Plan(RUN, rounds=rounds, seed=seed), say)
    shown = ("name", "body", "accuracy", "local_only_accuracy", "kept", "test_records")
    figures = [{key: site[key] for key in shown} for site in outcome.report["sites"]]
    return _make_report(root, start, outcome, figures)


def run_pretrained_demo(root: Path, seed: int, say: Say) -> dict[str, Any]:
    """Run the demo with images, end every process, and return the report with a comparison to pooled records."""
    start = time.monotonic()
    _announce_folders(root, say)
    images = (root / "images").resolve()
    schema = Schema("folder", CLASSES, input_shape=(3, PATCH, PATCH))
    federation = LocalFederation.create(root, schema, {name: LocalSite(images / name, BODY) for name in SITES})
    write_rosters(federation)
    plan = make_pretrained_demo_plan(seed)
    start_sites = federation.start(say, lambda: write_site_images(images, seed))
    with start_sites as run_plan, ThreadPoolExecutor(1) as pool:
        pooled = pool.submit(pool_records, federation, plan)  # meanwhile, the processes start
        outcome = run_plan(plan)
    figures = [{"name": name, "body": BODY, **_read_test_results(federation, name)} for name in SITES]
    comparison = compare_with_pooled(federation, plan, pooled.result())
    return _make_report(root, start, outcome, figures, privacy=outcome.report["privacy"], pooled=comparison)


def _announce_folders(root: Path, say: Say) -> None:
    """Say where the demo's folders are."""
    say(f"the server and the sites have their folders below {root}, and connect on this machine only")
    say("in a real federation the server and each site have a machine of their own; see docs/deploy.md")


def _make_report(
    root: Path, start: float, outcome: RunOutcome, sites: list[dict[str, Any]], **more: object
) -> dict[str, Any]:
    seconds = round(time.monotonic() - start, 1)
    return {"sites": sites, **outcome.summarise_communication(), **more, "seconds": seconds, "folder": str(root)}


def _divide_records(labels: Tensor, n_class: int, alpha: float, seed: int) -> dict[str, list[int]]:
    """Return site -> row numbers of its records. With a smaller alpha, the sites' class shares differ more."""
    # The function divides training and test rows; the sites split their rows themselves, so one of the two is enough.
    key = Key(seed).child("demo")
    dealt = divide_by_dirichlet(labels, labels, clients=len(SITES), alpha=alpha, n_class=n_class, key=key)
    return {name: rows.tolist() for name, rows in zip(SITES, dealt.train, strict=True)}


def write_site_tables(folder: Path, seed: int) -> dict[str, Path]:
    """Divide the digits among the sites, write each site's table as a CSV file, and return site -> path of the file."""
    bunch = load_digits()
    columns = {name: bunch.data[:, at] for at, name in enumerate(PIXELS)}
    frame = pl.DataFrame(columns | {"digit": list(map(str, bunch.target))})
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.csv" for name in SITES}
    for name, rows in _divide_records(torch.from_numpy(bunch.target), 10, TABLES_ALPHA, seed).items():
        frame[rows].write_csv(paths[name])
    return paths


def make_table_schema() -> Schema:
    """Make the schema of the demo's tables, the same at the three sites."""
    return Schema("digit", tuple(map(str, range(10))), tuple(Feature(name, FeatureKind.NUMERIC) for name in PIXELS))


def cut_patches() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Cut the photographs into patches (n, height, width, 3) without overlap; also return each patch's class number."""
    found, labels = [], []
    for label, file in enumerate(("flower.jpg", "china.jpg")):
        photograph = load_sample_image(file)
        rows, columns = photograph.shape[0] // PATCH, photograph.shape[1] // PATCH
        whole = photograph[: rows * PATCH, : columns * PATCH]
        patches = whole.reshape(rows, PATCH, columns, PATCH, 3).swapaxes(1, 2).reshape(-1, PATCH, PATCH, 3)
        found.append(patches)
        labels += [label] * len(patches)
    return np.concatenate(found), np.array(labels)


def write_site_images(root: Path, seed: int) -> None:
    """Divide the patches among the sites, and write those of each site as image files into `root`/SITE/CLASS."""
    patches, labels = cut_patches()
    for name, rows in _divide_records(torch.from_numpy(labels), len(CLASSES), IMAGES_ALPHA, seed).items():
        for label in CLASSES:
            (root / name / label).mkdir(parents=True, exist_ok=True)
        for row in rows:
            Image.fromarray(patches[row]).save(root / name / CLASSES[labels[row]] / f"{row:04}.png")


def make_pretrained_demo_plan(seed: int) -> Plan:
    """Make the plan of the demo with images: one secure sum, epsilon 1 for every record, and two heads from the sum.

    The heads are those of the methods `fed-ncm` (nearest class means) and `fedlog`.
    """
    spec = RunSpec(
        method="fed-heads",
        options={"heads": "ncm,fedlog"},
        seed=seed,
        privacy="record",  # type: ignore[arg-type]
        epsilon=1.0,
        delta=1e-5,
        clip="l2:1",
        trust="distributed",  # type: ignore[arg-type]
    )
    return make_plan(spec, RUN, lambda: len(SITES))


def write_rosters(federation: LocalFederation) -> None:
    """Write the roster, the list of the sites' keys for secure sums, into the folders of the server and the sites.

    In a real federation the sites exchange these keys without the server.
    """
    entries = [format_roster_entry(folder) for folder in federation.sites.values()]
    for place in (federation.server.path, *(folder.path for folder in federation.sites.values())):
        write_roster(place, entries)


def _read_test_results(federation: LocalFederation, site: str) -> dict[str, Any]:
    """Read one site's test accuracy and number of test records. In a real private run only the site can read them."""
    kept = json.loads((federation.sites[site].models / RUN / "report.json").read_text())
    return {"accuracy": kept["federated"]["test"]["accuracy"], "test_records": kept["federated"]["test"]["records"]}


@dataclass(frozen=True, eq=False)
class PooledRecords:
    """The records of all sites together: exact sums of the features of training records, and all test records."""

    statistics: Statistics  # of the training records
    noise_std: float  # the standard deviation of the noise in each of the federation's sums
    test: Tensor  # features
    labels: Tensor


def pool_records(federation: LocalFederation, plan: Plan) -> PooledRecords:
    """Read the images of all sites, and sum the features of all training images, without noise."""
    folders = list(federation.sites.values())
    sites = [load_data(folder, folder.read_config(), RowPreparation.ALONE) for folder in folders]
    body = load_body(folders[0].read_config(), (3, PATCH, PATCH), plan.feature_clip)
    guard = plan.build_protection(len(CLASSES), body.width)
    if guard is None:
        raise RunError(
            "expected a private plan for the demo, found one without privacy", hint="use `make_pretrained_demo_plan`"
        )

    def compute_features(records: Records) -> Tensor:
        with torch.no_grad():
            return body.compute_features({}, records.inputs, None)

    train = [site.federation.train.at(site.shard.train) for site in sites]
    tests = [site.federation.test.at(site.shard.test) for site in sites]
    moments = [guard.sum_moments(compute_features(rows), rows.labels, len(CLASSES), Detail.MEANS) for rows in train]
    return PooledRecords(
        reduce(add, moments).statistics,
        guard.mechanism.compute_std_of_sum(len(SITES)),
        torch.cat([compute_features(rows) for rows in tests]),
        torch.cat([rows.labels for rows in tests]),
    )


def compare_with_pooled(federation: LocalFederation, plan: Plan, pooled: PooledRecords) -> dict[str, float]:
    """Compare the federation's noisy sums, and its head from them, with sums and a head of the pooled records.

    Both heads are heads of nearest class means. Return the test accuracy of each, the number of training records, the
    standard deviation of the noise (`noise_std`), and `noise_found`: the root mean squared difference of the sums
    divided by `noise_std`. It is about 1 if the noise is the only difference.
    """
    state = checkpoint.read(RunFolder.of_run(federation.server, plan.name).checkpoint, lambda _: None).values
    away = state["sums"] - pooled.statistics.sums
    heads = {"accuracy": solve_nearest_mean_head(pooled.statistics), "accuracy_with_noise": state[HEAD]}
    right = {
        name: float((logits(pooled.test, {HEAD: head.to(pooled.test)}).argmax(1) == pooled.labels).double().mean())
        for name, head in heads.items()
    }
    found = float(away.square().mean().sqrt()) / pooled.noise_std
    return {**right, "noise_std": pooled.noise_std, "noise_found": found, "records": pooled.statistics.total}


def describe_comparison_with_pooled(found: Mapping[str, float]) -> str:
    """Describe the result of `compare_with_pooled` in one sentence."""
    off = abs(math.log(found["noise_found"]))
    verdict = "the noise is the only difference" if off < 0.3 else "the noise does not explain the difference"
    return (
        f"all {found['records']:.0f} training patches in one place, without noise: test accuracy "
        f"{found['accuracy']:.3f}; the federation's nearest mean with epsilon 1: {found['accuracy_with_noise']:.3f}; "
        f"its sums differ by {found['noise_found']:.2f} standard deviations of the noise: {verdict}"
    )
