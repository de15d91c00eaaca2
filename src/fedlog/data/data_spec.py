"""The choice of data and of their division, as a value; and federations from a user's own function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from fedlog.data.federation import Federation
from fedlog.errors import InputError
from fedlog.files.names import did_you_mean, import_callable

Partition = Literal["shards", "dirichlet", "user", "person", "iid", "ordered", "unequal"]
# What divides a data set among clients: for those that come divided it means nothing.
DIVISION = ("clients", "classes_per_client", "partition", "dirichlet_alpha", "train_records", "test_records")
SITES = "sites:"  # before the folder
ENTRY_POINT_GROUP = "fedlog.data"


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


def refuse_settings(spec: DataSpec, names: Sequence[str], reason: str) -> None:
    """Refuse those of these settings that were given."""
    given = [name for name in names if getattr(spec, name) != DATA_DEFAULTS[name]]
    if given:
        raise InputError(
            f"data set {spec.name} does not use {', '.join(given)}: {reason}",
            hint=f"leave out {', '.join('--' + name.replace('_', '-') for name in given)}",
        )


class _WatchedSpec(DataSpec):
    """A specification that remembers which of its settings were looked at."""

    def __getattribute__(self, name: str) -> Any:
        if name in DATA_DEFAULTS:
            object.__getattribute__(self, "__dict__").setdefault("_seen", set()).add(name)
        return object.__getattribute__(self, name)


def call_own_function(spec: DataSpec, known: Sequence[str]) -> Federation:
    """Call the function of that name and return its result; refuse a setting that the function does not read.

    `known` are the named data sets, one of which a mistyped name may have meant.
    """
    function = _find_own_function(spec.name, known)
    watched = _WatchedSpec(**vars(spec))
    federation = function(watched)
    if not isinstance(federation, Federation):
        raise InputError(f"{spec.name}: expected a fedlog Federation; returned: {type(federation).__name__}")
    seen: set[str] = vars(watched).get("_seen", set())
    unseen = [
        name for name in (*DIVISION, "data_dir", "label", "schema", "site_column", "split_seed") if name not in seen
    ]
    refuse_settings(spec, unseen, "its function does not look at them")
    return federation


def _find_own_function(name: str, known: Sequence[str]) -> Callable[[DataSpec], object]:
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        loaded: Callable[[DataSpec], object] = entry.load()
        return loaded
    if ":" not in name:
        others = f"one of: {', '.join(known)}, sites:FOLDER or package.module:function"
        raise InputError(f"no data set by the name: {name}", hint=did_you_mean(name, known, others))
    return import_callable(name, "data set", "give package.module:function; is it on PYTHONPATH?")
