"""Load the federation that a `DataSpec` describes: a named data set, files of sites, or a user's own function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fedlog.core.keys import Key
from fedlog.data import undivided_data
from fedlog.data.data_spec import DIVISION, SITES, DataSpec, Partition, refuse_settings
from fedlog.data.federation import Federation, Records, Shard, check_federation
from fedlog.data.leaf import digest_leaf_folder, read_leaf
from fedlog.data.partition import (
    Division,
    divide_at_random,
    divide_by_dirichlet,
    divide_by_people,
    divide_by_shards,
    divide_by_value,
    hold_out_people,
    hold_out_recordings,
    hold_out_records,
)
from fedlog.data.public_data_sets import find_data_folder
from fedlog.data.undivided_data import UndividedData, find_recordings
from fedlog.data.user_function import call_user_function
from fedlog.errors import InputError, add_default_hint

DEFAULT_DIRICHLET_ALPHA = 0.5
DEFAULT_CLASSES_PER_CLIENT = 2


# The paper's settings for the data sets that it uses.
DEFAULTS = {
    "digits": DataSpec("digits", clients=10, classes_per_client=2, partition="shards"),
    "circle": DataSpec("circle", clients=2, partition="ordered"),
    "diabetes": DataSpec("diabetes", clients=3, partition="unequal"),
    "wine-alcohol": DataSpec("wine-alcohol", clients=3, partition="unequal"),
    "wine": DataSpec("wine", clients=3, partition="unequal"),
    "breast-cancer": DataSpec("breast-cancer", clients=4, partition="unequal"),
    "mnist": DataSpec("mnist", clients=50, classes_per_client=2, partition="shards", train_records=3000),
    "mnist-selection": DataSpec(
        "mnist-selection", clients=50, classes_per_client=2, partition="shards", train_records=3000
    ),
    "cifar10": DataSpec("cifar10", clients=100, classes_per_client=2, partition="shards"),
    "cifar100": DataSpec("cifar100", clients=100, classes_per_client=10, partition="shards"),
    "har": DataSpec("har", clients=6, partition="user"),
    "leaf": DataSpec("leaf", partition="user"),
}

_PARTITIONS: dict[str, tuple[Partition, ...]] = {
    "circle": ("ordered", "shards", "dirichlet", "iid"),
    "har": ("user", "person", "shards", "dirichlet", "iid"),
    "leaf": ("user",),
}
_PEOPLE = 30  # in UCI HAR
_HELD_OUT_OF_A_PERSON = 0.25
_LABEL_PARTITIONS: tuple[Partition, ...] = ("shards", "dirichlet", "iid")
# Why these partitions take no limit on the number of records.
_USED_WHOLE = {
    "user": "the user partition uses all records of each person",
    "person": "the person partition uses all records of each person",
    "unequal": "it is small and always used whole",
}


def load_federation(spec: DataSpec) -> Federation:
    """Load and check the federation that the specification describes.

    A user's own function gets the specification and returns a `Federation`. Settings that it does not read are refused;
    otherwise a run's record would wrongly say that they were used.
    """
    spec = resolve_data(spec)
    key = Key(spec.seed).child("data")
    if spec.name in DEFAULTS:
        federation = _load_named_federation(spec, key)
    elif spec.name.startswith(SITES):
        from fedlog.data.sites import SiteSources, load_sites  # here, because polars is slow to import

        sources = SiteSources.find(spec.name.removeprefix(SITES), spec.site_column)
        federation = load_sites(sources, spec.label, spec.schema, spec.split_seed, rows_alone=spec.rows_alone)
    else:
        federation = call_user_function(spec, tuple(DEFAULTS))
    return hold_out_validation(federation, spec)


def hold_out_validation(federation: Federation, spec: DataSpec) -> Federation:
    """Return the federation, checked, with a share of each client's training records held out for validation.

    The share is `spec.validation_fraction`; nothing is held out if it is 0.
    """
    check_federation(federation)
    if spec.validation_fraction and any(len(shard.validation) for shard in federation.shards):
        refuse_settings(spec, ("validation_fraction",), "it already has validation records")
    if spec.validation_fraction == 0:
        return federation
    train, fraction, shards = federation.train, spec.validation_fraction, []
    of_recording = find_recordings(train.inputs) if (spec.name, spec.partition) == ("har", "person") else None
    for index, shard in enumerate(federation.shards):
        key = Key(spec.seed).child("data", "validation", index)
        # Windows of one person overlap, so they must not be on both sides of the split.
        if of_recording is not None:
            kept, held = hold_out_recordings(shard.train, train.labels, of_recording, fraction, key)
        elif spec.name == "har":
            kept, held = hold_out_people(shard.train, train.required_users, fraction, key)
        else:
            kept, held = hold_out_records(shard.train, train.labels, fraction, key)
        shards.append(replace(shard, train=kept, validation=held))
    return check_federation(replace(federation, shards=tuple(shards)))


def can_data_change(name: str) -> bool:
    """Whether this name stands for files of sites or a user's function, whose records can change under the same name.

    A LEAF folder counts as a named data set; `digest_leaf_data` finds out whether its files have changed.
    """
    return name not in DEFAULTS


def digest_leaf_data(spec: DataSpec) -> str | None:
    """The digest of the files of the LEAF folder if the specification names LEAF, else None.

    The other named data sets never change. Files of sites and users' functions are digested after they were loaded.
    """
    return digest_leaf_folder(find_data_folder(spec.data_dir)) if spec.name == "leaf" else None


def resolve_data(spec: DataSpec) -> DataSpec:
    """The specification with the defaults of its data set filled in; InputError if settings contradict each other."""
    if spec.name.startswith(SITES):
        refuse_settings(spec, (*DIVISION, "validation_fraction", "data_dir"), "the files are the sites")
    if spec.name not in DEFAULTS:
        return spec
    refuse_settings(spec, ("label", "schema", "site_column", "split_seed"), f"they are for {SITES}FOLDER")
    default = DEFAULTS[spec.name]
    allowed = ("unequal",) if default.partition == "unequal" else _PARTITIONS.get(spec.name, _LABEL_PARTITIONS)
    partition = spec.partition or default.partition
    if partition not in allowed:
        raise InputError(
            f"data set {spec.name} cannot be divided by the partition: {partition}",
            hint=f"one of: {', '.join(allowed)}",
        )
    for name, needed in (("classes_per_client", "shards"), ("dirichlet_alpha", "dirichlet")):
        if partition != needed and getattr(spec, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{flag} needs the {needed} partition, found: {partition}",
                hint=f"leave out {flag}, or use --partition {needed}",
            )
    if partition in _USED_WHOLE:
        refuse_settings(spec, ("train_records", "test_records"), _USED_WHOLE[partition])
    if spec.clients is not None and spec.clients < 1:
        raise InputError(f"the number of clients must be at least 1, found: {spec.clients}", hint="--clients 10")
    if partition == "person" and (spec.clients or 1) > _PEOPLE:
        raise InputError(
            f"data set {spec.name} has {_PEOPLE} people, fewer than the clients asked for: {spec.clients}",
            hint=f"use --clients {_PEOPLE} or fewer",
        )
    if spec.train_records is not None and spec.train_records < 1:
        raise InputError(
            f"the number of training records must be at least 1, found: {spec.train_records}",
            hint="--train-records 1000",
        )
    defaults: dict[str, Any] = {
        "partition": partition,
        "clients": _PEOPLE if partition == "person" else default.clients,
        "train_records": default.train_records,
    }
    if partition == "shards":
        defaults["classes_per_client"] = default.classes_per_client or DEFAULT_CLASSES_PER_CLIENT
    if partition == "dirichlet":
        defaults["dirichlet_alpha"] = DEFAULT_DIRICHLET_ALPHA
    return replace(spec, **{name: value for name, value in defaults.items() if getattr(spec, name) is None})


def _load_named_federation(spec: DataSpec, key: Key) -> Federation:
    folder = find_data_folder(spec.data_dir)
    if spec.name == "leaf":
        return read_leaf(folder, users=spec.clients)
    if spec.partition == "unequal":
        from fedlog.data.public_tables import divide_public_table  # here, because polars is slow to import

        return divide_public_table(spec.name, spec.clients or 0, key)
    readers: dict[str, Callable[[], UndividedData]] = {
        "digits": undivided_data.load_sklearn_digits,
        "circle": partial(undivided_data.make_circle, spec.train_records, key.child("pools")),
        "mnist": partial(undivided_data.load_mnist, folder),
        "mnist-selection": partial(undivided_data.load_mnist_selection, folder),
        "cifar10": partial(undivided_data.load_cifar10, folder),
        "cifar100": partial(undivided_data.load_cifar100, folder),
        "har": partial(undivided_data.load_har, folder),
    }
    undivided = readers[spec.name]()
    undivided = replace(
        undivided,
        train=_keep_first_records(undivided.train, spec.train_records, "training", "--train-records", spec.name),
        test=_keep_first_records(undivided.test, spec.test_records, "test", "--test-records", spec.name),
    )
    first, noun = 0, "client"
    if spec.partition in ("user", "person"):  # people are divided anew, whichever pool they were in
        everybody = Records.join([undivided.train, undivided.test])
        undivided = replace(undivided, train=everybody, test=everybody)
        first, noun = (0, "site") if spec.partition == "user" else (1, "person")
    division = _divide_records(undivided, spec, key)
    if spec.partition == "user":
        undivided, division = _separate_pools(undivided, division)
    names = [f"{noun}-{number}" for number in range(first, first + len(division.train))]
    return Federation(
        name=spec.name,
        n_class=len(undivided.class_names),
        input_shape=tuple(undivided.train.inputs.shape[1:]),
        train=undivided.train,
        test=undivided.test,
        shards=tuple(Shard(*own) for own in zip(names, division.train, division.test, strict=True)),
        transform=undivided.transform,
        class_names=undivided.class_names,
    )


def _keep_first_records(records: Records, wanted: int | None, part: str, flag: str, name: str) -> Records:
    """The first `wanted` records, or all if it is None; InputError if there are fewer than `wanted`."""
    if wanted is None:
        return records
    if wanted > len(records):
        raise InputError(
            f"data set {name} has {len(records)} {part} records, fewer than asked for: {wanted}",
            hint=f"give a smaller {flag}, or leave it out",
        )
    return records.at(torch.arange(wanted))


@add_default_hint("use other --clients, --partition, --classes-per-client or --dirichlet-alpha")
def _divide_records(undivided: UndividedData, spec: DataSpec, key: Key) -> Division:
    """The positions of each client's records, by the partition of the specification."""
    train, test, n_class = undivided.train.labels, undivided.test.labels, len(undivided.class_names)
    clients = spec.clients or 0
    if spec.partition == "user":
        return divide_by_people(undivided.train.required_users, clients=clients, key=key.child("sites"))
    if spec.partition == "person":
        return _make_person_clients(undivided.train, clients, key.child("persons"))
    key = key.child("partition")
    if spec.partition == "ordered":
        return divide_by_value(undivided.train.inputs[:, 0], undivided.test.inputs[:, 0], clients=clients)
    if spec.partition == "iid":
        return divide_at_random(train, test, clients=clients, key=key)
    if spec.partition == "dirichlet":
        alpha = spec.dirichlet_alpha or 0.0
        return divide_by_dirichlet(train, test, clients=clients, alpha=alpha, n_class=n_class, key=key)
    classes = spec.classes_per_client or 0
    return divide_by_shards(train, test, clients=clients, classes_per_client=classes, n_class=n_class, key=key)


def _separate_pools(undivided: UndividedData, division: Division) -> tuple[UndividedData, Division]:
    """Put the clients' training records into one pool and their test records into another.

    `division` has positions in a single pool of all records; the division that is returned has positions in the two
    new pools.
    """
    pools, parts = [], []
    for pool, own in ((undivided.train, division.train), (undivided.test, division.test)):
        used = torch.cat(own).sort().values
        pools.append(pool.at(used))
        parts.append(tuple(torch.searchsorted(used, positions) for positions in own))
    return replace(undivided, train=pools[0], test=pools[1]), Division(parts[0], parts[1])


def _make_person_clients(pool: Records, persons: int, key: Key) -> Division:
    """Make each of the first `persons` people a client; hold out some of each person's recordings for test."""
    of_recording = find_recordings(pool.inputs)
    split = []
    for person in range(1, persons + 1):
        own = (pool.required_users == person).nonzero()[:, 0]
        split.append(hold_out_recordings(own, pool.labels, of_recording, _HELD_OUT_OF_A_PERSON, key.child(person)))
    kept, held = zip(*split, strict=True)
    return Division(kept, held)
