"""Which data a run is on, and how they are divided, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from fedlog.errors import InputError

Partition = Literal["shards", "dirichlet", "user", "person", "iid", "ordered", "unequal"]


@dataclass(frozen=True)
class DataSpec:
    """Which data, and how they are divided among clients. What is None takes the data set's default."""

    name: str  # a data set's name, an entry point's, sites:FOLDER or package.module:function
    clients: int | None = None
    classes_per_client: int | None = None  # shards only
    partition: Partition | None = None
    dirichlet_alpha: float | None = None  # dirichlet only
    train_records: int | None = None  # the first n of the training pool
    test_records: int | None = None  # the first n of the test pool
    validation_fraction: float = 0.0  # of each client's training records
    data_dir: Path | None = None
    seed: int = 0
    label: str | None = None  # sites only: the column of the labels, where there is no schema
    schema: Path | None = None  # sites only: what the sites agree on
    site_column: str | None = None  # sites only: the column of a single table that names each row's site
    split_seed: int = 0  # sites only: decides which rows are held out; 0 as in a deployment
    rows_alone: bool = False  # sites only: no row's scaling or part depends on the others, as under record privacy


DATA_DEFAULTS: dict[str, object] = {field.name: field.default for field in fields(DataSpec)}
# What divides a data set among clients: for those that come divided it means nothing.
DIVISION = ("clients", "classes_per_client", "partition", "dirichlet_alpha", "train_records", "test_records")
SITES = "sites:"  # before the folder


def refuse_settings(spec: DataSpec, names: Sequence[str], reason: str) -> None:
    """Refuse those of these settings that were given."""
    given = [name for name in names if getattr(spec, name) != DATA_DEFAULTS[name]]
    if given:
        raise InputError(
            f"data set {spec.name} does not use {', '.join(given)}: {reason}",
            hint=f"leave out {', '.join('--' + name.replace('_', '-') for name in given)}",
        )
