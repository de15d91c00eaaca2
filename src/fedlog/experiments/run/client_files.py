"""Two files for a run's report: `clients.json` describes the clients, `geometry.json` shows their class means.

`clients.json` is written before the first round, `geometry.json` after the last. Runs of older versions have neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedlog.data.federation import Federation
from fedlog.experiments.run import records
from fedlog.files.json_text import write_json
from fedlog.models.body import HEAD, QUADRATIC, Body
from fedlog.models.weights_file import name_weights_file

if TYPE_CHECKING:
    from fedlog.engine.simulate.simulator import Simulation

CLIENTS, GEOMETRY = "clients.json", "geometry.json"
MOST_CLIENTS = 40  # class means of at most this many clients are drawn
MOST_RECORDS = 300  # class means are taken over about this many records of a client, or over all if it has fewer


@dataclass(frozen=True)
class ClientDescription:
    """One client: its body, the number of its training records by class, and how many records it holds out."""

    name: str
    body: str
    training: dict[str, int]  # by class; classes without records are left out
    validation: int
    test: int


@dataclass(frozen=True)
class PlanePoint:
    """A point in the drawn plane: the mean feature vector of a client's class, or a class's row of the common head."""

    client: str
    label: str
    x: float
    y: float


@dataclass(frozen=True)
class ClassMeansPlane:
    """The plane in which the class means differ most, with each client's class means and the common head's rows.

    `shown` is the share of the means' variance that lies in the plane.
    """

    shown: float
    means: list[PlanePoint]
    head: list[PlanePoint]  # one row a class, centred and scaled to the class means; empty without a common head
    clients: int  # how many clients the run has


def write_client_descriptions(folder: Path, federation: Federation, bodies: Sequence[Body]) -> None:
    """Write `clients.json`: a description of every client."""
    names = federation.class_names
    found = []
    for shard, body in zip(federation.shards, bodies, strict=True):
        counts = torch.bincount(federation.train.labels[shard.train], minlength=federation.n_class).tolist()
        training = {names[at]: count for at, count in enumerate(counts) if count}
        found.append(ClientDescription(shard.name, body.name, training, len(shard.validation), len(shard.test)))
    write_json(folder / CLIENTS, [asdict(each) for each in found])


def read_client_descriptions(folder: Path) -> dict[str, ClientDescription]:
    """Read the descriptions of a run's clients, by name; empty if the run has no `clients.json`."""
    found = records.read_json_file_as(folder / CLIENTS, list[ClientDescription], "the clients")
    return {each.name: each for each in found or ()}


def write_geometry(folder: Path, models: Path, simulation: Simulation) -> None:
    """Write `geometry.json`: the class means of the clients' finished models and the head's rows, as points in a plane.

    Skip runs that predict a number, and private runs, because their guarantee would not cover the means.
    """
    federation = simulation.federation
    if simulation.protection is not None or federation.target_range is not None:
        return
    every = -(-len(federation.shards) // MOST_CLIENTS)
    means = [
        mean
        for at in range(0, len(federation.shards), every)
        for mean in _compute_class_means(simulation, at, models / name_weights_file(federation.shards[at].name))
    ]
    head = simulation.server.state.get(HEAD)
    common = None if head is None or QUADRATIC in simulation.server.state else head.double()
    if len({mean.shape for _, _, mean in means}) == 1 and len(means) > 1:
        found = project_means(means, common, federation.class_names)
        write_json(folder / GEOMETRY, asdict(replace(found, clients=len(federation.shards))))


def _compute_class_means(simulation: Simulation, client: int, weights: Path) -> list[tuple[str, str, Tensor]]:
    """Return (client name, class name, mean feature vector) for each class of which this client has records."""
    federation, body, shard = simulation.federation, simulation.bodies[client], simulation.federation.shards[client]
    if not weights.exists():
        return []  # all clients share one model, saved under another name
    rows = federation.train.at(shard.train[:: max(1, len(shard.train) // MOST_RECORDS)])
    with torch.no_grad():
        features = body.compute_features(load_file(weights), federation.transform.prepare(rows.inputs), None).double()
    return [
        (shard.name, federation.class_names[label], features[rows.labels == label].mean(0))
        for label in sorted(set(rows.labels.tolist()))
    ]


def project_means(
    means: Sequence[tuple[str, str, Tensor]], head: Tensor | None, classes: Sequence[str]
) -> ClassMeansPlane:
    """Project the class means and the head's rows onto the plane in which the means differ most."""
    points = torch.stack([mean for _, _, mean in means])
    centred = points - points.mean(0)
    _, values, directions = torch.linalg.svd(centred, full_matrices=False)
    plane = directions[:2]
    # Fix the sign of each direction, so that the same records always give the same picture.
    largest = plane.gather(1, plane.abs().argmax(1, keepdim=True))
    plane = plane * torch.where(largest < 0, -1.0, 1.0)
    placed = _pad_to_pairs(centred @ plane.T)
    variance = values.square()
    rows: list[PlanePoint] = []
    if head is not None and head.shape[1] == points.shape[1] + 1:
        weights = head[:, 1:] - head[:, 1:].mean(0)
        arrows = weights @ plane.T
        scale = placed.norm(dim=1).max() / arrows.norm(dim=1).max().clamp_min(1e-12)
        pairs = _pad_to_pairs(scale * arrows)
        rows = [
            PlanePoint("", name, *_convert_to_rounded_pair(pair)) for name, pair in zip(classes, pairs, strict=True)
        ]
    drawn = [PlanePoint(c, label, *_convert_to_rounded_pair(p)) for (c, label, _), p in zip(means, placed, strict=True)]
    shown = float(variance[:2].sum() / variance.sum().clamp_min(1e-300))
    return ClassMeansPlane(round(shown, 4), drawn, rows, len({client for client, _, _ in means}))


def _pad_to_pairs(values: Tensor) -> Tensor:
    """Return the values as (n, 2); if they have only one coordinate, add a second of 0."""
    return torch.nn.functional.pad(values, (0, 2 - values.shape[1]))


def _convert_to_rounded_pair(pair: Tensor) -> tuple[float, float]:
    return float(f"{float(pair[0]):.4g}"), float(f"{float(pair[1]):.4g}")


def read_geometry(folder: Path) -> ClassMeansPlane | None:
    """Read `geometry.json` of a run; None if the run has none."""
    return records.read_json_file_as(folder / GEOMETRY, ClassMeansPlane, "the class means")
