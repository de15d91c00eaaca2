"""How the messages of a run cross: the codec of each way, and what is left out because the receiver has it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from fedlog.errors import InputError
from fedlog.wire.codec import CODECS, Codec, codec, refuse_open_codec
from fedlog.wire.frame import comparable
from fedlog.wire.message import Kind, Message


@dataclass(frozen=True)
class Transport:
    """The settings of a run's messages."""

    codec: str = "f32"
    codec_down: str | None = None
    """None: the same both ways."""
    differences: bool = False
    """Broadcasts are differences to what each client has."""
    closed_world: bool = False
    """A client gets the rows of its own classes only."""
    skip_below: float | None = None
    """A message that moved by less than this share of its norm is not sent; `same` goes instead."""

    def __post_init__(self) -> None:
        codec(self.codec)
        down = self.down
        if self.differences and not down.differences:
            able = ", ".join(name for name, each in CODECS.items() if each.differences)
            raise InputError(f"codec {down.name} cannot carry differences", hint=f"--codec-down with one of {able}")
        if self.closed_world and "rows" not in down.name.split("+"):
            raise InputError(
                f"a closed world sends some rows only, and codec {down.name} sends all of them",
                hint="--codec-down rows, rows+q8, ...",
            )
        if self.skip_below is not None and not 0 <= self.skip_below < math.inf:
            raise InputError(f"skip_below must be a finite number, 0 or more: {self.skip_below}")

    @cached_property
    def up(self) -> Codec:
        """The codec of uploads."""
        return codec(self.codec)

    @cached_property
    def down(self) -> Codec:
        """The codec of broadcasts."""
        return codec(self.codec_down or self.codec)

    @property
    def tailored(self) -> bool:
        """Whether clients get different bytes of the same broadcast."""
        return self.differences or self.closed_world or self.skip_below is not None

    def refuse_in(self, where: str) -> None:
        """Refuse ways of sending that show more than dense messages do; `where` names the mode in errors."""
        if self.closed_world:
            raise InputError(
                f"a closed world cannot be used in {where}: the rows that a client gets show which classes it holds",
                hint="leave out --world closed",
            )
        if self.skip_below is not None:
            raise InputError(
                f"skipping cannot be used in {where}: whether a client has news depends on its records, and no "
                "accounting covers that",
                hint="leave out --skip-below",
            )
        refuse_open_codec(self.codec, where)
        refuse_open_codec(self.down.name, where)


PAPER_TRANSPORT = Transport()  # every number as it is, the same for everyone


def movement(message: Message, known: Message) -> float:
    """The distance of a message from another, divided by the other's norm; infinite if they cannot be compared."""
    if not comparable(message, known):
        return math.inf
    pairs = [(a.to(torch.float64), b.to(torch.float64)) for a, b in zip(message.arrays, known.arrays, strict=True)]
    norm = math.sqrt(sum(float(old.square().sum()) for _, old in pairs))
    moved = math.sqrt(sum(float((new - old).square().sum()) for new, old in pairs))
    return moved / norm if norm else math.inf


def keep_classes(message: Message, classes: frozenset[int]) -> Message:
    """A head or statistics with the rows of these classes alone; the others are zero. Other messages stay whole."""
    if message.kind not in (Kind.HEAD, Kind.STATISTICS):
        return message
    rows = torch.zeros(message.arrays[0].shape[0], dtype=torch.bool)
    rows[sorted(classes)] = True
    first = torch.where(rows[:, None], message.arrays[0], torch.zeros_like(message.arrays[0]))
    return Message(message.kind, (first, *message.arrays[1:]))
