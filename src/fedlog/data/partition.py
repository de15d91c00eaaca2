"""Divide records among clients: pure functions that return the positions of each client's records.

They look at labels, values or people, and draw at random with a `Key`: the same key gives the same division. The
divide_* functions give every record to exactly one client; a client's test records resemble its training records. The
hold_out_* functions take a part of one client's records away, for validation or test.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.errors import InputError

Positions = NDArray[np.int64]

# A Dirichlet draw that leaves a client without records is repeated, at most this often.
DIRICHLET_ATTEMPTS = 1000


@dataclass(frozen=True, eq=False)
class Division:
    """The positions of each client's records in the training pool and in the test pool."""

    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]


def divide_by_shards(
    train_labels: Tensor, test_labels: Tensor, *, clients: int, classes_per_client: int, n_class: int, key: Key
) -> Division:
    """Give each client records of at most `classes_per_client` classes: the partition of the paper and of LG-FedAvg.

    Each class is cut, in file order, into `clients * classes_per_client / n_class` shards of nearly equal size. The
    shards are shuffled, and every client gets `classes_per_client` of them. A client may get two shards of one class,
    and then has one class fewer. A client's test records are of the same classes as its training records.
    """
    _check_clients(clients)
    dealt = clients * classes_per_client
    if not 1 <= classes_per_client <= n_class:
        raise InputError(f"classes per client must be 1 to {n_class}, found: {classes_per_client}")
    if dealt % n_class:
        raise InputError(
            f"{clients} clients x {classes_per_client} classes = {dealt} shards cannot be cut evenly from "
            f"{n_class} classes",
            hint=f"choose clients x classes per client as a multiple of {n_class}, or another partition",
        )
    classes = np.repeat(np.arange(n_class), dealt // n_class)
    class_lists = key.child("class lists").numpy().permutation(classes).reshape(clients, classes_per_client)
    return Division(
        train=_deal_shards(train_labels, class_lists, n_class, "training", key.child("train")),
        test=_deal_shards(test_labels, class_lists, n_class, "test", key.child("test")),
    )


def divide_by_dirichlet(
    train_labels: Tensor, test_labels: Tensor, *, clients: int, alpha: float, n_class: int, key: Key
) -> Division:
    """Divide each class among the clients in random proportions, drawn from Dirichlet(alpha).

    A class has the same proportions in the training pool and in the test pool.

    The proportions are drawn again until each client has a record in both pools.
    """
    _check_clients(clients)
    if not (alpha > 0 and np.isfinite(alpha)):
        raise InputError(f"Dirichlet alpha must be positive and finite, found: {alpha}")
    # The positions of each class in each pool, shuffled.
    pools = [
        [
            key.child(pool, label).numpy().permutation(np.flatnonzero(labels.numpy() == label))
            for label in range(n_class)
        ]
        for pool, labels in (("training", train_labels), ("test", test_labels))
    ]
    for attempt in range(DIRICHLET_ATTEMPTS):
        generator = key.child("proportions", attempt).numpy()
        proportions = generator.dirichlet(np.full(clients, alpha), size=n_class)  # (n_class, clients)
        if not np.isfinite(proportions).all():  # tiny alphas underflow to 0 / 0
            continue
        train, test = (_divide_in_proportions(pool, proportions) for pool in pools)
        if all(len(positions) for positions in (*train, *test)):
            return Division(train, test)
    raise InputError(
        f"Dirichlet partition with alpha {alpha} and {clients} clients: "
        f"in each of {DIRICHLET_ATTEMPTS} draws some client got no records",
        hint="use a larger alpha or fewer clients",
    )


def divide_at_random(train_labels: Tensor, test_labels: Tensor, *, clients: int, key: Key) -> Division:
    """Shuffle the records and cut them into parts of nearly equal size, whatever their classes."""
    _check_clients(clients)
    dealt = []
    for pool, labels in (("training", train_labels), ("test", test_labels)):
        if len(labels) < clients:
            raise InputError(f"too few {pool} records for {clients} clients: {len(labels)}", hint="use fewer clients")
        order = key.child(pool).numpy().permutation(len(labels))
        dealt.append(tuple(_sort_positions(part) for part in np.array_split(order, clients)))
    return Division(dealt[0], dealt[1])


def divide_by_value(train_values: Tensor, test_values: Tensor, *, clients: int) -> Division:
    """Sort records by one value and cut them into bands, one for each client, with equally many training records.

    The border between two bands lies midway between their nearest training values; test records follow these borders.
    """
    _check_clients(clients)
    if len(train_values) < clients:
        found = len(train_values)
        raise InputError(f"too few training records for {clients} clients: {found}", hint="use fewer clients")
    train, test = train_values.double().numpy(), test_values.double().numpy()
    bands = np.array_split(np.argsort(train, kind="stable"), clients)
    borders = [(train[low[-1]] + train[high[0]]) / 2 for low, high in pairwise(bands)]
    band_of_test = np.searchsorted(np.array(borders), test)
    return Division(
        train=tuple(_sort_positions(band) for band in bands),
        test=tuple(_sort_positions(np.flatnonzero(band_of_test == band)) for band in range(clients)),
    )


def divide_by_people(users: Tensor, *, clients: int, key: Key) -> Division:
    """Give each client the records of some people, at random; the records of a fifth of its people are for test.

    At least one person is for test. `users` (n,) says which person each record is from. Whole people are held out,
    because windows cut from one person's signal are too similar to be in both training and test.
    """
    of_record = users.numpy()
    people = np.unique(of_record)
    _check_clients(clients)
    if len(people) < 2 * clients:
        raise InputError(
            f"{clients} clients need {2 * clients} people, at least one each to train on and one to test on, "
            f"found: {len(people)}",
            hint=f"use at most {len(people) // 2} clients, or --partition person, which makes each person a client",
        )
    train, test = [], []
    for group in np.array_split(key.child("people").numpy().permutation(people), clients):
        held_out = max(1, len(group) // 5)
        test.append(_sort_positions(np.flatnonzero(np.isin(of_record, group[:held_out]))))
        train.append(_sort_positions(np.flatnonzero(np.isin(of_record, group[held_out:]))))
    return Division(tuple(train), tuple(test))


def hold_out_records(train_positions: Tensor, labels: Tensor, fraction: float, key: Key) -> tuple[Tensor, Tensor]:
    """The positions of one client's records that are kept for training, and those that are held out.

    `labels` are the labels of the whole pool. The share `fraction` of the client's records is held out, and about this
    share of each class. Each class keeps at least one training record, so fewer records may be held out.
    """
    _check_fraction(fraction)
    of_client = labels[train_positions].numpy()
    classes, counts = np.unique(of_client, return_counts=True)
    share = fraction * counts
    quota = np.floor(share).astype(np.int64)
    missing = round(fraction * len(of_client)) - int(quota.sum())
    for index in np.argsort(-(share - np.floor(share)), kind="stable")[: max(missing, 0)]:
        quota[index] = min(quota[index] + 1, counts[index] - 1)
    held = np.zeros(len(of_client), dtype=bool)
    generator = key.numpy()
    for label, many in zip(classes, quota, strict=True):
        held[generator.permutation(np.flatnonzero(of_client == label))[:many]] = True
    return _split_positions(train_positions, held)


def hold_out_people(train_positions: Tensor, users: Tensor, fraction: float, key: Key) -> tuple[Tensor, Tensor]:
    """The positions of one client's records that are kept, and those of whole people that are held out.

    `users` says which person each record of the pool is from. About `fraction` of the client's people are held out, at
    least one but never all; if there is only one person, nobody is held out.
    """
    _check_fraction(fraction)
    of_client = users[train_positions].numpy()
    people = np.unique(of_client)
    wanted = max(1, round(fraction * len(people))) if fraction > 0 else 0
    chosen = key.numpy().permutation(people)[: min(wanted, len(people) - 1)]
    return _split_positions(train_positions, np.isin(of_client, chosen))


def hold_out_recordings(
    positions: Tensor, labels: Tensor, recordings: Tensor, fraction: float, key: Key
) -> tuple[Tensor, Tensor]:
    """The positions of one client's records that are kept, and those of whole recordings that are held out.

    A recording is a signal from which several overlapping records were cut; `recordings` says which one each record of
    the pool is from. In each class, random recordings are held out until they have the share `fraction` of the client's
    records of this class; at least one recording is kept.
    """
    _check_fraction(fraction)
    of_client, of_recording = labels[positions].numpy(), recordings[positions].numpy()
    held = np.zeros(len(of_client), dtype=bool)
    generator = key.numpy()
    for label in np.unique(of_client):
        of_class = of_client == label
        wanted = fraction * of_class.sum()
        for recording in generator.permutation(np.unique(of_recording[of_class]))[1:]:
            if held[of_class].sum() >= wanted:
                break
            held |= of_class & (of_recording == recording)
    return _split_positions(positions, held)


def _split_positions(positions: Tensor, held: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Split positions by the mask `held`: those that are kept, and those that are held out."""
    mask = torch.from_numpy(held)
    return positions[~mask], positions[mask]


def _deal_shards(labels: Tensor, class_lists: Positions, n_class: int, part: str, key: Key) -> tuple[Tensor, ...]:
    """The positions of each client's records in one pool: a random shard of every class in the client's list.

    `class_lists` (clients, classes_per_client) has the list of each client. A class that is twice in a list stands for
    two shards.
    """
    shards_per_class = class_lists.size // n_class
    of_pool = labels.numpy()
    waiting: list[list[Positions]] = []
    for label in range(n_class):
        positions = np.flatnonzero(of_pool == label)
        if len(positions) < shards_per_class:
            raise InputError(
                f"class {label} needs {shards_per_class} {part} records, one for each shard, found: {len(positions)}",
                hint="use fewer clients, fewer classes per client or more records",
            )
        shards = np.array_split(positions, shards_per_class)
        waiting.append([shards[index] for index in key.child(label).numpy().permutation(shards_per_class)])
    return tuple(
        _sort_positions(np.concatenate([waiting[label].pop() for label in classes])) for classes in class_lists
    )


def _divide_in_proportions(classes: list[Positions], proportions: NDArray[np.float64]) -> tuple[Tensor, ...]:
    """The positions of each client's records in one pool, of which `classes` has the positions of each class.

    `proportions` (n_class, clients) has each client's share of each class.
    """
    parts: list[list[Positions]] = [[] for _ in range(proportions.shape[1])]
    for positions, shares in zip(classes, proportions, strict=True):
        borders = np.rint(np.cumsum(shares)[:-1] * len(positions)).astype(np.int64)
        for client, part in enumerate(np.split(positions, borders)):
            parts[client].append(part)
    return tuple(_sort_positions(np.concatenate(of_client)) for of_client in parts)


def _sort_positions(positions: Positions) -> Tensor:
    # Sorted, so that a shard is read from memory in order and its order says nothing about the random draws.
    return torch.from_numpy(np.sort(positions).astype(np.int64, copy=False))


def _check_clients(clients: int) -> None:
    if clients < 1:
        raise InputError(f"the number of clients must be at least 1, found: {clients}")


def _check_fraction(fraction: float) -> None:
    if not 0 <= fraction < 1:
        raise InputError(
            f"validation fraction must be at least 0 and below 1, found: {fraction}", hint="--validation-fraction 0.2"
        )
