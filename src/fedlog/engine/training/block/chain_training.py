"""Train one client after another, many batches in one compiled call, if all layers of the body are in one chain.

A chain is a list of neighbouring layers that `chain.c` computes without returning to Python.

For each batch the compiled code runs the forward steps, the gradient of cross-entropy with a linear head, and the
backward steps. Adam updates each parameter as soon as its gradient is known. A client's parameters, Adam's moments and
all values in between stay in the cache from one batch to the next.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from fedlog.engine.training.block.adam import AdamRow, FlatAdam
from fedlog.engine.training.block.chain import (
    TAPE,
    Buffer,
    ChainStage,
    Program,
    UnitSizes,
    write_backward,
    write_forward,
)
from fedlog.engine.training.block.network import ArrangedFeed, PixelFeed
from fedlog.engine.training.tasks import CLOCK
from fedlog.models.body import HEAD, Params

PARTS = ("forward", "backward", "optimiser")  # of a batch; their seconds are measured
GATHERED_NUMBERS = 2**18  # numbers of a client's inputs that are gathered at once, so that they stay in the cache
_LANES = 8  # a record's scores have room for whole vectors of so many numbers


@dataclass(frozen=True, eq=False)
class ShuffledRecords:
    """The training records of clients that train together, each client's records in the random order of one epoch.

    Clients with fewer records are padded to the largest client.
    """

    positions: Tensor  # (clients, records), in the training pool
    labels: Tensor  # (clients, records)
    weights: Tensor  # (clients, records): 1 / (size of the record's batch), 0 on padding
    crops: Tensor | None  # (3, clients, records): row, column, flip
    masks: dict[str, Tensor]  # by dropout layer: multipliers (clients, records, *shape)


class _AdamConstants(ctypes.Structure):
    """The C struct that `adam_update` takes: the number of parameters, and Adam's constants."""

    _fields_ = [
        ("count", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("beta1", "beta2", "epsilon")),
    ]


class _ClockEntry(ctypes.Structure):
    """The C struct that `read_clock` takes: the index of the sum to which it adds the seconds since its last call."""

    _fields_ = [("entry", ctypes.c_int64)]


@dataclass(frozen=True)
class _ProgramKey:
    """What the program that trains on one batch depends on; programs are cached under these keys."""

    batch: int
    dtype: torch.dtype
    trained: tuple[tuple[str, int], ...]  # name and size of each trained parameter, in Adam's order
    frozen: tuple[str, ...]
    classes: int
    rule: tuple[float, ...]  # beta1, beta2, epsilon


@dataclass(frozen=True, eq=False)
class ChainTraining:
    """Trains a body whose layers are all in one chain, with a linear head and cross-entropy, by compiled code."""

    stage: ChainStage
    programs: dict[_ProgramKey, Program] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """The names of the parameters of the body and the head."""
        return {HEAD, *(name for link in self.stage.links for name in link.names)}

    def train_epoch(
        self,
        adam: FlatAdam,
        frozen: Params,
        record_counts: Sequence[int],
        size: int,
        drawn: ShuffledRecords,
        feed: PixelFeed | ArrangedFeed,
    ) -> None:
        """Train each client for one epoch in batches of `size`.

        `record_counts` has each client's number of records, and `frozen` the parameters that are not trained.
        """
        names = self.names
        own = {name: value for name, value in frozen.items() if name in names}
        _check_labels(drawn.labels, len((own if HEAD in own else adam.get_parameters())[HEAD][0]))
        for client, number in enumerate(record_counts):
            still = {name: value[client : client + 1] for name, value in own.items()}
            for start, batches, length in _split_into_calls(number, size, self._count_batches_per_call(size)):
                part = (client, slice(start, start + batches * length))
                positions, labels, weights = (
                    each[part].view(batches, length) for each in (drawn.positions, drawn.labels, drawn.weights)
                )
                crops = None if drawn.crops is None else drawn.crops[:, *part].reshape(3, batches, length)
                with CLOCK.time("gather"):
                    inputs = feed.gather(positions, crops)
                CLOCK.add(self._train(adam.reserve_steps(client, batches), still, inputs, labels, weights))

    def _count_batches_per_call(self, size: int) -> int:
        numbers = self.stage.compute_slot_sizes(size)[self.stage.reads[0]]
        return max(1, GATHERED_NUMBERS // max(1, numbers))

    def _train(
        self, row: AdamRow, frozen: Params, inputs: Tensor, labels: Tensor, weights: Tensor
    ) -> Mapping[str, float]:
        """Train one client on these batches of equal size, and return the seconds of each part of the work."""
        batches, size = labels.shape
        classes = frozen[HEAD].shape[1] if HEAD in frozen else row.shapes[HEAD][0]
        trained = tuple((name, shape.numel()) for name, shape in row.shapes.items())
        key = _ProgramKey(size, row.values.dtype, trained, tuple(frozen), classes, row.rule)
        if key not in self.programs:
            self.programs[key] = _write_program(self.stage, key)
        seconds = torch.zeros(1, 1 + len(PARTS), dtype=torch.float64)
        given = (inputs, labels, weights, row.corrections, row.values, row.first, row.second, seconds)
        self.programs[key].run(batches, (None, *given, *(value.contiguous() for value in frozen.values())))
        return dict(zip(PARTS, seconds[0, 1:].tolist(), strict=True))


def _check_labels(labels: Tensor, classes: int) -> None:
    """Raise an IndexError if a label is out of range, because the compiled code would write outside of its memory."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise IndexError(
            f"training records: expected labels from 0 to {classes - 1} (the head has {classes} classes), "
            f"found labels from {int(labels.min())} to {int(labels.max())}"
        )


def _split_into_calls(records: int, size: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Split records into calls of at most `most` equal batches; yield (first record, batches, records in a batch)."""
    whole = records // size
    for first in range(0, whole, most):
        yield first * size, min(most, whole - first), size
    if records % size:
        yield whole * size, 1, records % size


def _write_program(stage: ChainStage, key: _ProgramKey) -> Program:
    """Write the program that trains on one batch.

    `ChainTraining._train` must pass its tensors in the order in which buffers are made here.
    """
    program, bases = Program(key.dtype, keeps=True, has_tape=False), count(TAPE + 1)
    (entry,), (output,) = stage.reads, stage.writes
    sizes = stage.compute_slot_sizes(key.batch)
    inputs, labels, weights, corrections = (
        Buffer(numbers, next(bases)) for numbers in (sizes[entry], key.batch, key.batch, 3)
    )
    own, first, second = (_locate_parameters(key.trained, next(bases)) for _ in range(3))
    seconds = Buffer(1 + len(PARTS), next(bases))
    params = own | {name: Buffer(0, next(bases)) for name in key.frozen}
    gradients = {name: program.reserve_temporary(numbers) for name, numbers in key.trained}
    waiting = set(own)

    def read_clock(part: int) -> None:
        program.add_call("read_clock", _ClockEntry(part), seconds)

    def add_adam_step(name: str, gradient: Buffer | None) -> None:
        read_clock(1 + PARTS.index("backward"))
        rule = _AdamConstants(own[name].size, *key.rule)
        program.add_call("adam_update", rule, gradient, corrections, own[name], first[name], second[name])
        read_clock(1 + PARTS.index("optimiser"))
        waiting.discard(name)

    read_clock(0)
    values = {entry: inputs}
    memories = write_forward(stage, program, key.batch, values, params)
    read_clock(1 + PARTS.index("forward"))
    of_features = program.reserve_temporary(sizes[output])
    extent = UnitSizes(key.batch, key.classes, sizes[output] // key.batch, 0, 0.0)
    scores = program.reserve_scratch(key.batch * -(-key.classes // _LANES) * _LANES)
    of_head = gradients.pop(HEAD, None)
    program.add_call(
        "cross_entropy", extent, values[output], params[HEAD], labels, weights, of_features, of_head, scores
    )
    if of_head is not None:
        add_adam_step(HEAD, of_head)
    behind: dict[int, Buffer | None] = {output: of_features}
    write_backward(
        stage, program, memories, behind, gradients, set(), lambda name: add_adam_step(name, gradients[name])
    )
    for name in sorted(waiting):  # no value depends on it
        add_adam_step(name, None)
    return program


def _locate_parameters(sizes: Sequence[tuple[str, int]], base: int) -> dict[str, Buffer]:
    """The position of each parameter in a flat row of all parameters."""
    placed, start = {}, 0
    for name, numbers in sizes:
        placed[name] = Buffer(numbers, base, start)
        start += numbers
    return placed
