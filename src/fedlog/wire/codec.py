"""The codecs by name. A codec turns a message into bytes; these bytes are counted, and receivers decode them."""

from __future__ import annotations

from typing import Protocol

from fedlog.core.keys import Key
from fedlog.errors import InputError
from fedlog.wire import compact, frame
from fedlog.wire.compact import CompactCodec
from fedlog.wire.frame import MAGIC, Float32Codec, WireError
from fedlog.wire.message import Kind, Message
from fedlog.wire.numbers import Float16Numbers, Float32Numbers, QuantisedNumbers

__all__ = [
    "CODECS",
    "Codec",
    "Float32Codec",
    "WireError",
    "find_codec",
    "is_unchanged_message",
    "refuse_revealing_codec",
]


class Codec(Protocol):
    """Turns messages into bytes and back."""

    @property
    def name(self) -> str:
        """The name by which users choose the codec, for example with `--codec`."""

    @property
    def number(self) -> int:
        """The number that stands for the codec in a message. It is part of the wire format: never reuse a number."""

    @property
    def hides_classes(self) -> bool:
        """Whether a message's length and layout hide which classes it has values for."""

    @property
    def supports_differences(self) -> bool:
        """Whether the codec can send a message as the difference to an earlier one that the receiver has."""

    @property
    def rounding(self) -> float:
        """An upper bound on |rounding error| / |row| for any row of an array, in L2 norms."""

    def encode(self, message: Message, key: Key | None = None, known: Message | None = None) -> bytes:
        """The bytes of a message. Codecs that round at random need a key; equal keys give equal bytes.

        `known` is a message that the receiver has; a codec that supports differences then sends the difference to it,
        if kind and shapes are the same.
        """

    def decode(self, blob: bytes, known: Message | None = None) -> Message:
        """The message in these bytes; `WireError` if they are not a message. A difference is added to `known`."""


_ALL: tuple[Codec, ...] = (
    Float32Codec(),
    CompactCodec(2, Float32Numbers(), rows=True),
    CompactCodec(3, Float16Numbers()),
    CompactCodec(4, QuantisedNumbers(8)),
    CompactCodec(5, QuantisedNumbers(4)),
    CompactCodec(6, Float16Numbers(), rows=True),
    CompactCodec(7, QuantisedNumbers(8), rows=True),
    CompactCodec(8, QuantisedNumbers(4), rows=True),
    CompactCodec(9, Float32Numbers(), rows=True, compressed=True),
    CompactCodec(10, Float16Numbers(), compressed=True),
    CompactCodec(11, QuantisedNumbers(8), compressed=True),
    CompactCodec(12, QuantisedNumbers(4), compressed=True),
    CompactCodec(13, Float16Numbers(), rows=True, compressed=True),
    CompactCodec(14, QuantisedNumbers(8), rows=True, compressed=True),
    CompactCodec(15, QuantisedNumbers(4), rows=True, compressed=True),
)
CODECS: dict[str, Codec] = {each.name: each for each in _ALL}


def refuse_revealing_codec(name: str, where: str) -> None:
    """Raise an InputError if a codec's messages show which classes a client holds; `where` names the kind of run."""
    if not find_codec(name).hides_classes:
        shown = "the rows it sends show" if "rows" in name.split("+") else "the length of its messages shows"
        dense = ", ".join(each.name for each in _ALL if each.hides_classes)
        raise InputError(
            f"codec {name} cannot be used in {where}: {shown} which classes a client holds", hint=f"one of {dense}"
        )


def is_unchanged_message(blob: bytes) -> bool:
    """Whether these bytes are a message of kind SAME, which says only that the last message is still valid."""
    at = {frame.VERSION: 3, compact.VERSION: 4}.get(blob[2] if len(blob) > 4 else 0)
    return at is not None and blob[:2] == MAGIC and blob[at] == Kind.SAME


def find_codec(name: str) -> Codec:
    """The codec of that name; InputError for an unknown name."""
    if name not in CODECS:
        raise InputError(f"unknown codec: {name}", hint=f"one of {', '.join(CODECS)}")
    return CODECS[name]
