"""The demo with images: three sites, one exchange, a frozen pretrained body, epsilon 1 and a secure sum.

The images are patches of two photographs that come with scikit-learn, a temple and a flower; the sites have different
shares of the two. A secure sum hides what each site sends, and the sum has the noise of epsilon 1 for every record.
Without that noise, the heads would be those of all patches in one place. The demo computes both, and compares them.
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
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedlog.core.heads.gaussian import nearest_mean_head
from fedlog.core.keys import Key
from fedlog.core.stats import Detail, Statistics
from fedlog.data.federation import Records
from fedlog.data.partition import divide_by_dirichlet
from fedlog.data.schema import Schema
from fedlog.data.site import Preparation
from fedlog.engine.protocol import checkpoint
from fedlog.errors import RunError
from fedlog.flower.folders.roster import format_own_entry, write_roster
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite
from fedlog.flower.ops.processes import Say
from fedlog.flower.protocol.plan import Plan, make_plan
from fedlog.flower.server.run_folder import RunFolder
from fedlog.flower.site.data import load_body, load_data
from fedlog.models.body import HEAD, logits
from fedlog.settings.spec import RunSpec

SITES = ("east", "north", "south")
CLASSES = ("flower", "temple")
PATCH = 24
# Features in 64 directions learned from public images, scaled to length 1: one record then adds little to the sums.
BODY = "pretrained:efficientnet-lite0:64+principal:64+unit"
ALPHA = 2.0
RUN = "demo"


def cut_patches() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Patches (n, height, width, 3) of the photographs, which do not overlap, and the class number of each patch."""
    from sklearn.datasets import load_sample_image

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
    """Write each site's images into a folder, with a subfolder for each class."""
    patches, labels = cut_patches()
    marks = torch.from_numpy(labels)
    dealt = divide_by_dirichlet(
        marks, marks, clients=len(SITES), alpha=ALPHA, n_class=len(CLASSES), key=Key(seed).child("demo")
    )
    for name, rows in zip(SITES, dealt.train, strict=True):
        for label in CLASSES:
            (root / name / label).mkdir(parents=True, exist_ok=True)
        for row in rows.tolist():
            Image.fromarray(patches[row]).save(root / name / CLASSES[labels[row]] / f"{row:04}.png")


def make_demo_plan(seed: int) -> Plan:
    """The plan of the demo: class sums in one secure sum, epsilon 1 for every record, and two heads from them."""
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


def run_pretrained_demo(root: Path, seed: int, say: Say) -> dict[str, Any]:
    """Run the demo, end every process, and return the report."""
    start = time.monotonic()
    say(f"everything in one place, on the loopback alone: {root}")
    say("in a real federation the server and each site have a machine of their own; see docs/deploy.md")
    images = (root / "images").resolve()
    schema = Schema("folder", CLASSES, input_shape=(3, PATCH, PATCH))
    federation = LocalFederation.create(root, schema, {name: LocalSite(images / name, BODY) for name in SITES})
    write_key_lists(federation)
    plan = make_demo_plan(seed)
    start_sites = federation.start(say, lambda: write_site_images(images, seed))
    with start_sites as running, ThreadPoolExecutor(1) as pool:
        pooled = pool.submit(pool_records, federation, plan)  # meanwhile, the processes start
        outcome = running.run(plan, say)
    return {
        "sites": [{"name": name, "body": BODY, **_read_site_figures(federation, name)} for name in SITES],
        **outcome.count_traffic(),
        "privacy": outcome.report["privacy"],
        "pooled": compare_with_pooled(federation, plan, pooled.result()),
        "seconds": round(time.monotonic() - start, 1),
        "folder": str(root),
    }


def write_key_lists(federation: LocalFederation) -> None:
    """Write the list of signing keys into every folder; real sites exchange their keys without the server."""
    entries = [format_own_entry(folder) for folder in federation.sites.values()]
    for place in (federation.server.path, *(folder.path for folder in federation.sites.values())):
        write_roster(place, entries)


def _read_site_figures(federation: LocalFederation, site: str) -> dict[str, Any]:
    """The figures of one site; in a real private run only the site itself knows them."""
    kept = json.loads((federation.sites[site].models / RUN / "report.json").read_text())
    return {"accuracy": kept["federated"]["test"]["accuracy"], "test_records": kept["federated"]["test"]["records"]}


@dataclass(frozen=True, eq=False)
class PooledRecords:
    """All sites' records in one place: the sums of the training records without noise, and the test records."""

    statistics: Statistics  # of the training records
    noise_std: float  # of each of the federation's sums
    test: Tensor  # features
    labels: Tensor


def pool_records(federation: LocalFederation, plan: Plan) -> PooledRecords:
    """Read the images of all sites, and sum their features in one place, without noise."""
    folders = list(federation.sites.values())
    sites = [load_data(folder, folder.read_config(), Preparation.ALONE) for folder in folders]
    body = load_body(folders[0].read_config(), (3, PATCH, PATCH), plan.feature_clip)
    guard = plan.build_protection(len(CLASSES), body.width)
    if guard is None:
        raise RunError("expected a private plan for the demo, found one without privacy")

    def features(records: Records) -> Tensor:
        with torch.no_grad():
            return body.features({}, records.inputs, None)

    train = [site.federation.train.at(site.shard.train) for site in sites]
    tests = [site.federation.test.at(site.shard.test) for site in sites]
    moments = [guard.sum_moments(features(rows), rows.labels, len(CLASSES), Detail.MEANS) for rows in train]
    return PooledRecords(
        reduce(add, moments).statistics,
        guard.mechanism.std_of_sum(len(SITES)),
        torch.cat([features(rows) for rows in tests]),
        torch.cat([rows.labels for rows in tests]),
    )


def compare_with_pooled(federation: LocalFederation, plan: Plan, pooled: PooledRecords) -> dict[str, float]:
    """Compare the federation's noisy sums and head with those of all records in one place.

    `noise_found` is the root mean squared difference of the sums divided by `noise_std`: about 1 if the noise is the
    only difference.
    """
    state = checkpoint.read(RunFolder.of_run(federation.server, plan.name).checkpoint, lambda _: None).values
    away = state["sums"] - pooled.statistics.sums
    heads = {"accuracy": nearest_mean_head(pooled.statistics), "accuracy_with_noise": state[HEAD]}
    right = {
        name: float((logits(pooled.test, {HEAD: head.to(pooled.test)}).argmax(1) == pooled.labels).double().mean())
        for name, head in heads.items()
    }
    found = float(away.square().mean().sqrt()) / pooled.noise_std
    return {**right, "noise_std": pooled.noise_std, "noise_found": found, "records": pooled.statistics.total}


def describe_pooled(found: Mapping[str, float]) -> str:
    """The result of `compare_with_pooled` in one sentence."""
    off = abs(math.log(found["noise_found"]))
    verdict = "the noise is the only difference" if off < 0.3 else "the noise does not explain the difference"
    return (
        f"all {found['records']:.0f} training patches in one place, without noise: test accuracy "
        f"{found['accuracy']:.3f}; the federation's nearest mean with epsilon 1: {found['accuracy_with_noise']:.3f}; "
        f"its sums are {found['noise_found']:.2f} noise stds away: {verdict}"
    )
