"""The specification of a run's data: which data set, and how it is divided among clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from fedlog.errors import InputError

Partition = Literal["shards", "dirichlet", "user", "person", "iid", "ordered", "unequal"]


@dataclass(frozen=True)
class DataSpec:
    """Which data a run uses, and how they are divided among clients; None stands for the data set's default."""

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
    label: str | None = None  # sites only: the column of the labels, if there is no schema
    schema: Path | None = None  # sites only: the schema file that the sites agree on
    site_column: str | None = None  # sites only: the column of a single table that names each row's site
    split_seed: int = 0  # sites only: chooses the validation rows; a deployment uses 0
    rows_alone: bool = False  # sites only: rows are scaled and split independently of each other (record privacy)


DATA_DEFAULTS: dict[str, object] = {field.name: field.default for field in fields(DataSpec)}
# The settings that divide a data set among clients. Data that are already divided do not use them.
DIVISION = ("clients", "classes_per_client", "partition", "dirichlet_alpha", "train_records", "test_records")
SITES = "sites:"  # the prefix of names that stand for files of sites


def refuse_settings(spec: DataSpec, names: Sequence[str], reason: str) -> None:
    """Raise an InputError with this reason if the specification sets any of these settings."""
    given = [name for name in names if getattr(spec, name) != DATA_DEFAULTS[name]]
    if given:
        raise InputError(
            f"data set {spec.name} does not use {', '.join(given)}: {reason}",
            hint=f"leave out {', '.join('--' + name.replace('_', '-') for name in given)}",
        )
