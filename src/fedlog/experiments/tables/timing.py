"""Estimate how long a cell takes: from finished cells of its row, else by timing a few clients on random data."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from fedlog.algorithms.registry import make_method
from fedlog.algorithms.shape import ModelPlan
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import IDENTITY, Transform
from fedlog.engine.clients import model_plan
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.experiments.run.execute import SUMMARY
from fedlog.experiments.run.prepare import build_method
from fedlog.experiments.tables.cells import Cell, Shape
from fedlog.models.body import Body
from fedlog.models.catalog import make_body
from fedlog.settings.training import RunSettings


@dataclass(frozen=True)
class FederationSize:
    """The size of a data set's federation, on which the time of a round depends."""

    input_shape: tuple[int, ...]
    n_class: int
    clients: int
    train: int  # training records of a client
    test: int  # test records of a client
    sample: int = 4  # how many clients are timed
    transform: Transform = IDENTITY


SIZES = {
    "digits": FederationSize((1, 8, 8), 10, 10, 135, 45),
    "circle": FederationSize((2,), 2, 2, 40, 500),
    "mnist": FederationSize((1, 28, 28), 10, 50, 60, 200, sample=5),
    "mnist-selection": FederationSize((1, 28, 28), 10, 50, 60, 200, sample=5),
    "cifar10": FederationSize((3, 32, 32), 10, 100, 500, 100, sample=1, transform=Transform(crop_padding=4, flip=True)),
    "cifar100": FederationSize(
        (3, 32, 32), 100, 100, 500, 100, sample=1, transform=Transform(crop_padding=4, flip=True)
    ),
    "wine": FederationSize((13,), 3, 3, 45, 15, sample=3),
    "breast-cancer": FederationSize((30,), 2, 4, 107, 35, sample=4),
    "har": FederationSize((9, 128), 6, 6, 1370, 345, sample=1),
    "leaf": FederationSize((3, 84, 84), 2, 2360, 24, 6, sample=1),
}
SYNTHETIC_SECONDS = 5.0


def estimate_seconds(cell: Cell, done: Sequence[Cell]) -> float:
    """The estimated seconds of the cell: the mean of finished cells of its row, else from a timed sample."""
    if cell.experiment.shape is Shape.SYNTHETIC:
        return SYNTHETIC_SECONDS
    same = [other.folder / SUMMARY for other in done if other.row == cell.row]
    measured = [float(json.loads(path.read_text())["seconds"]) for path in same]
    if measured:
        return sum(measured) / len(measured)
    return cell.steps * _estimate_round_seconds(cell)


def _estimate_round_seconds(cell: Cell) -> float:
    """The estimated seconds of a round of all clients: one epoch times the method's epochs."""
    spec = cell.spec
    _, _, plan = _make_sample(spec.data, spec.body[0])
    schedule = build_method(spec, plan).schedule
    epochs = sum(phase.epochs for exchange in schedule.round for phase in exchange.phases)
    return _measure_epoch_seconds(spec.data, spec.body[0], spec.batch_size or 1) * max(1, epochs)


@lru_cache
def _make_sample(data: str, body_name: str) -> tuple[Federation, Body, ModelPlan]:
    """A few clients with random records of the data set's shape, and their model."""
    size = SIZES[data]
    federation, made = _make_random_federation(size), make_body(body_name, size.input_shape)
    return federation, made, model_plan(federation, [made] * size.sample)


@lru_cache
def _measure_epoch_seconds(data: str, body_name: str, batch_size: int) -> float:
    """The seconds of one epoch and one evaluation of every client, measured on a few clients and scaled up."""
    size = SIZES[data]
    federation, made, plan = _make_sample(data, body_name)
    method, engine = make_method("local", plan, {"epochs": 1}), Engine(Settings(batch_size))
    rounds = Simulation(method, federation, [made] * size.sample, plan, engine, RunSettings(rounds=2)).start().rounds()
    next(rounds)
    # The time of this process, which does all of the work; on a busy machine the clock also counts other programs.
    start = time.process_time()
    next(rounds)
    return (time.process_time() - start) * size.clients / size.sample


def _make_random_federation(size: FederationSize) -> Federation:
    generator = Key(0).child("calibration").torch()

    def pool(records: int) -> Records:
        inputs = torch.randint(0, 256, (records, *size.input_shape), generator=generator, dtype=torch.uint8)
        return Records(inputs, torch.randint(0, size.n_class, (records,), generator=generator))

    train, test = torch.arange(size.sample * size.train), torch.arange(size.sample * size.test)
    parts = zip(torch.split(train, size.train), torch.split(test, size.test), strict=True)
    shards = tuple(Shard(f"client-{at}", own, held_out) for at, (own, held_out) in enumerate(parts))
    names = tuple(str(label) for label in range(size.n_class))
    pools = pool(len(train)), pool(len(test))
    return Federation("random", size.n_class, size.input_shape, *pools, shards, size.transform, names)
