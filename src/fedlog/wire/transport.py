"""How a run sends its messages: the codec for each direction, and three ways to send fewer bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from fedlog.errors import InputError
from fedlog.wire.codec import CODECS, Codec, find_codec, refuse_revealing_codec
from fedlog.wire.frame import can_send_difference
from fedlog.wire.message import Kind, Message


@dataclass(frozen=True)
class Transport:
    """The codec for each direction, and what may be sent instead of a whole message.

    That is the difference to the last message, some of its rows, or only that it is unchanged (kind SAME).
    """

    codec: str = "f32"
    codec_down: str | None = None
    """The codec of broadcasts; None: the same as for uploads."""
    differences: bool = False
    """Send a broadcast as the difference to the last one that the client has."""
    closed_world: bool = False
    """Send a client only the rows of the classes it holds."""
    skip_below: float | None = None
    """Send SAME instead of a message that changed by less than this share of its norm."""

    def __post_init__(self) -> None:
        find_codec(self.codec)
        down = self.broadcast_codec
        if self.differences and not down.supports_differences:
            able = ", ".join(name for name, each in CODECS.items() if each.supports_differences)
            raise InputError(
                f"--down differences sends broadcasts as differences, but codec {down.name} cannot do that",
                hint=f"--codec-down with one of {able}",
            )
        if self.closed_world and "rows" not in down.name.split("+"):
            raise InputError(
                f"--world closed sends each client only the rows of its classes, but codec {down.name} sends all rows",
                hint="--codec-down with a codec of rows, such as rows or rows+q8",
            )
        if self.skip_below is not None and not 0 <= self.skip_below < math.inf:
            raise InputError(f"--skip-below must be a finite number, 0 or more, found: {self.skip_below}")

    @cached_property
    def upload_codec(self) -> Codec:
        """The codec for messages from clients to the server."""
        return find_codec(self.codec)

    @cached_property
    def broadcast_codec(self) -> Codec:
        """The codec for messages from the server to clients."""
        return find_codec(self.codec_down or self.codec)

    @property
    def broadcasts_differ_by_client(self) -> bool:
        """Whether different clients get different bytes for the same broadcast."""
        return self.differences or self.closed_world or self.skip_below is not None

    def refuse_revealing_settings(self, where: str) -> None:
        """Raise an InputError if messages show which classes a client holds; `where` names the kind of run."""
        if self.closed_world:
            raise InputError(
                f"--world closed cannot be used in {where}: the rows of the head that a client gets show its classes",
                hint="leave out --world closed",
            )
        if self.skip_below is not None:
            raise InputError(
                f"--skip-below cannot be used in {where}: whether a message is skipped depends on the client's "
                "records, and the privacy accounting does not cover that",
                hint="leave out --skip-below",
            )
        refuse_revealing_codec(self.codec, where)
        refuse_revealing_codec(self.broadcast_codec.name, where)


PAPER_TRANSPORT = Transport()  # every number as float32, the same bytes for every client


def compute_relative_change(message: Message, known: Message) -> float:
    """The L2 distance between a message and the earlier one `known`, divided by the norm of `known`.

    The result is infinite if kinds or shapes differ, or if `known` is zero.
    """
    if not can_send_difference(message, known):
        return math.inf
    pairs = [(a.to(torch.float64), b.to(torch.float64)) for a, b in zip(message.arrays, known.arrays, strict=True)]
    norm = math.sqrt(sum(float(old.square().sum()) for _, old in pairs))
    moved = math.sqrt(sum(float((new - old).square().sum()) for new, old in pairs))
    return moved / norm if norm else math.inf


def zero_classes_except(message: Message, classes: frozenset[int]) -> Message:
    """A head or statistics with zeros in the rows of all classes except these; any other message unchanged."""
    if message.kind not in (Kind.HEAD, Kind.STATISTICS):
        return message
    rows = torch.zeros(message.arrays[0].shape[0], dtype=torch.bool)
    rows[sorted(classes)] = True
    first = torch.where(rows[:, None], message.arrays[0], torch.zeros_like(message.arrays[0]))
    return Message(message.kind, (first, *message.arrays[1:]))
