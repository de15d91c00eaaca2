"""Messages that refer to one that the receiver has: whether they can be a difference to it, and its checksum."""

from __future__ import annotations

import zlib

import torch

from fedlog.wire.message import Message


def comparable(message: Message, known: Message) -> bool:
    """Whether a message can be sent as a difference to another: the same kind, shapes and types of entries."""
    found, expected = (
        [(array.shape, array.is_floating_point(), array.dtype == torch.bool) for array in each.arrays]
        for each in (message, known)
    )
    return message.kind is known.kind and found == expected


def checksum_of(known: Message | None) -> int:
    """The start value of a frame's checksum: 0, or the checksum of the message that it refers to."""
    found = 0
    for array in () if known is None else known.arrays:
        exact = array.to(torch.float64 if array.is_floating_point() else torch.int64)
        found = zlib.crc32(exact.contiguous().numpy().tobytes(), found)
    return found
