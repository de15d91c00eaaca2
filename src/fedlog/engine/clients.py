"""The clients of a run: their bodies, training records and held-out records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedlog.algorithms.interface import Algorithm, Bodies, ModelPlan, TrainingRecords, predicts_numbers
from fedlog.algorithms.registry import find_methods
from fedlog.data.federation import Federation
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Body


def list_methods_for_different_bodies() -> str:
    """The names of the methods that accept different bodies, separated by commas."""
    return ", ".join(find_methods(lambda method: method.bodies is Bodies.ANY))


def check_method_fits_labels(algorithm: Algorithm, *, numbers: bool) -> None:
    """Refuse a classifying method for data with a number to predict, and a regression method for data with classes.

    `numbers` is True for data with a number to predict, and False for data with classes.
    """
    for_numbers = predicts_numbers(algorithm)
    if numbers and not for_numbers:
        names = ", ".join(find_methods(predicts_numbers))
        raise InputError(
            f"method {algorithm.name} predicts classes, but the label of the data is a number with a range",
            hint=f"these methods predict a number: {names}",
        )
    if for_numbers and not numbers:
        raise InputError(
            f"method {algorithm.name} predicts a number, but the labels of the data are classes",
            hint="use another method, or a schema with range = [low, high] instead of values under [label]",
        )


POOLED_CLIENT = "pooled"  # the name of the only client if the method pools all records


@dataclass(frozen=True, eq=False)
class Client:
    """One client of a run: its body, and the positions of its training, validation and test records.

    A method that pools all records has a single client. For each shard (the data of one site), this client has a set of
    validation records and a set of test records.
    """

    index: int
    name: str
    body: Body
    train: Tensor  # (n,) positions in the training pool
    tests: tuple[Tensor, ...]  # positions in the test pool
    validations: tuple[Tensor, ...]  # positions in the training pool, held out

    @cached_property
    def records(self) -> int:
        """The number of training records."""
        return len(self.train)


def make_model_plan(federation: Federation, bodies: Sequence[Body]) -> ModelPlan:
    """The sizes that all clients' models share; InputError if their bodies have different numbers of features."""
    first = bodies[0]
    for shard, body in zip(federation.shards, bodies, strict=True):
        if body.width != first.width:
            raise InputError(
                f"client {shard.name}: body {body.name} has {body.width} features, "
                f"but body {first.name} of client {federation.shards[0].name} has {first.width}",
                hint="bodies may differ, but all need the same number of features",
            )
    n_entries = first.n_entries + federation.n_class * (1 + first.width)
    return ModelPlan(federation.n_class, first.width, (*first.layers, (HEAD,)), n_entries)


def list_clients(federation: Federation, bodies: Sequence[Body], algorithm: Algorithm) -> tuple[Client, ...]:
    """The clients of a run: one for each shard (the data of one site), or only one if the method pools all records."""
    if algorithm.bodies is Bodies.SAME and len({body.name for body in bodies}) > 1:
        names = ", ".join(sorted({body.name for body in bodies}))
        raise InputError(
            f"method {algorithm.name} needs the same body for every client, found: {names}",
            hint=f"these methods accept different bodies: {list_methods_for_different_bodies()}",
        )
    if not any(len(shard.train) for shard in federation.shards):
        raise InputError(
            f"data set {federation.name}: no client has a training record",
            hint="check the data, or hold out fewer records for validation and test",
        )
    if algorithm.training is TrainingRecords.POOLED:
        # Sorted, so that the order of the clients does not matter.
        everyone = torch.cat([shard.train for shard in federation.shards]).sort().values
        tests = tuple(shard.test for shard in federation.shards)
        validations = tuple(shard.validation for shard in federation.shards)
        return (Client(0, POOLED_CLIENT, bodies[0], everyone, tests, validations),)
    return tuple(
        Client(index, shard.name, body, shard.train, (shard.test,), (shard.validation,))
        for index, (shard, body) in enumerate(zip(federation.shards, bodies, strict=True))
    )


def group_by_body(clients: Iterable[Client]) -> dict[str, list[Client]]:
    """Group the clients by the names of their bodies."""
    groups: dict[str, list[Client]] = {}
    for client in clients:
        groups.setdefault(client.body.name, []).append(client)
    return groups
