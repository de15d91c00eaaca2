"""List the experiments for `fedlog reproduce --list`: their data, finished cells (runs), and estimated hours left.

The time of a cell is estimated from finished cells of its row or, without any, by timing a few clients on random data.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedlog.algorithms.interface import ModelPlan
from fedlog.algorithms.registry import make_method
from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.leaf import find_leaf_folders
from fedlog.data.public_data_sets import PUBLIC_DATA_SETS, find_data_folder
from fedlog.data.transforms import IDENTITY, Transform
from fedlog.engine.clients import make_model_plan
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.errors import InputError
from fedlog.experiments.run.execute import read_summary
from fedlog.experiments.run.prepare import build_method
from fedlog.experiments.tables.catalog import EXPERIMENTS
from fedlog.experiments.tables.cells import Cell, CellState, Experiment, ExperimentKind, list_cells
from fedlog.models.body import Body
from fedlog.models.catalog import make_body
from fedlog.settings.training import RunSettings


@dataclass(frozen=True)
class ExperimentStatus:
    """The status of one experiment: how many of its cells (runs) are done, and which data are missing.

    `others` are folders of cells that were run with other settings.
    """

    experiment: Experiment
    missing: str | None  # which data are not on this machine, in words; None if all are
    cells: int
    done: int
    others: tuple[Path, ...]
    hours_left: float | None  # None if data are missing and cells are left to run

    def as_json(self) -> dict[str, Any]:
        """Return the status of the experiment as JSON values."""
        experiment = self.experiment
        return {
            "name": experiment.name,
            "title": experiment.title,
            "data": list(experiment.data),
            "rows": [row.name for row in experiment.rows],
            "seeds": list(experiment.seeds),
            "cells": self.cells,
            "done": self.done,
            "made_with_other_settings": len(self.others),
            "folders_made_with_other_settings": [str(folder) for folder in self.others],
            "missing": self.missing,
            "hours_left": self.hours_left,
        }


def list_statuses(out: Path, data_dir: Path | None, jobs: int) -> list[ExperimentStatus]:
    """List the status of every experiment in the results folder."""
    torch.set_num_threads(1)  # as in a cell, so that the timing is that of a cell
    return [_find_experiment_status(experiment, out, data_dir, jobs) for experiment in EXPERIMENTS.values()]


def _find_experiment_status(experiment: Experiment, out: Path, data_dir: Path | None, jobs: int) -> ExperimentStatus:
    """Find the status of one experiment in the results folder."""
    found = list_cells(experiment, out)
    missing = _describe_missing_data(experiment.data, find_data_folder(data_dir))
    by_state: dict[CellState, list[Cell]] = {state: [] for state in CellState}
    for cell in found:
        by_state[cell.read_state()].append(cell)
    done, others = by_state[CellState.DONE], tuple(cell.folder for cell in by_state[CellState.OTHER])
    to_do = [cell for cell in found if cell not in done]
    hours = None if missing and to_do else _estimate_hours(to_do, done, jobs)
    return ExperimentStatus(experiment, missing, len(found), len(done), others, hours)


def _describe_missing_data(names: Sequence[str], folder: Path) -> str | None:
    """Describe the first of these data sets that is missing in the folder; None if the folder has all of them."""
    for name in names:
        if name == "leaf":
            try:
                find_leaf_folders(folder)
            except InputError as error:
                return error.one_line
        data_set = PUBLIC_DATA_SETS.get(name.removesuffix("-selection"))
        if data_set is not None and not all((folder / file.path).is_file() for file in data_set.files):
            return f"{data_set.title} is not in {folder}; run `fedlog data fetch {data_set.name}`"
    return None


def _estimate_hours(to_do: Sequence[Cell], done: Sequence[Cell], jobs: int) -> float:
    """Estimate the hours for the cells `to_do` with this many parallel jobs; cells of a row get the same estimate."""
    waiting: dict[str, list[Cell]] = {}
    for cell in to_do:
        waiting.setdefault(cell.row.name, []).append(cell)
    seconds = sum(len(group) * estimate_seconds(group[0], done) for group in waiting.values())
    return seconds / 3600 / jobs


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
    """Estimate the seconds of the cell: the mean over finished cells of its row, else measured on a small sample."""
    if cell.experiment.kind is ExperimentKind.SYNTHETIC:
        return SYNTHETIC_SECONDS
    measured = [read_summary(other.folder).seconds for other in done if other.row == cell.row]
    if measured:
        return sum(measured) / len(measured)
    return cell.record_count * _estimate_round_seconds(cell)


def _estimate_round_seconds(cell: Cell) -> float:
    """Estimate the seconds of one round of all clients: the time of an epoch times the epochs of the method."""
    spec = cell.spec
    _, _, plan = _make_sample_federation(spec.data, spec.body[0])
    schedule = build_method(spec, plan).schedule
    epochs = sum(phase.epochs for exchange in schedule.round for phase in exchange.phases)
    return _measure_epoch_seconds(spec.data, spec.body[0], spec.batch_size or 1) * max(1, epochs)


@lru_cache
def _make_sample_federation(data: str, body_name: str) -> tuple[Federation, Body, ModelPlan]:
    """Make a few clients with random records of the data set's shape; return their federation, body and model plan."""
    size = SIZES[data]
    federation, made = _make_random_federation(size), make_body(body_name, size.input_shape)
    return federation, made, make_model_plan(federation, [made] * size.sample)


@lru_cache
def _measure_epoch_seconds(data: str, body_name: str, batch_size: int) -> float:
    """Measure the seconds of one epoch and one evaluation on a few clients, and scale them up to all clients."""
    size = SIZES[data]
    federation, made, plan = _make_sample_federation(data, body_name)
    method, engine = make_method("local", plan, {"epochs": 1}), Engine(Settings(batch_size))
    rounds = Simulation(method, federation, [made] * size.sample, plan, engine, RunSettings(rounds=2)).start().rounds()
    next(rounds)
    # The time of this process, which does all of the work; on a busy machine the clock also counts other programs.
    start = time.process_time()
    next(rounds)
    return (time.process_time() - start) * size.clients / size.sample


def _make_random_federation(size: FederationSize) -> Federation:
    """Make a federation of `size.sample` clients with random records."""
    generator = Key(0).child("calibration").torch()

    def draw_records(records: int) -> Records:
        inputs = torch.randint(0, 256, (records, *size.input_shape), generator=generator, dtype=torch.uint8)
        return Records(inputs, torch.randint(0, size.n_class, (records,), generator=generator))

    train, test = torch.arange(size.sample * size.train), torch.arange(size.sample * size.test)
    parts = zip(torch.split(train, size.train), torch.split(test, size.test), strict=True)
    shards = tuple(Shard(f"client-{at}", own, held_out) for at, (own, held_out) in enumerate(parts))
    names = tuple(str(label) for label in range(size.n_class))
    pools = draw_records(len(train)), draw_records(len(test))
    return Federation("random", size.n_class, size.input_shape, *pools, shards, size.transform, names)
