"""The ledger: how many bits were sent, by round, direction and kind of message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from fedlog.wire.message import Kind


class Direction(StrEnum):
    """The direction of a message: up from a client to the server, or down from the server to a client."""

    UP = "up"
    DOWN = "down"


@dataclass
class Ledger:
    """The number of bits sent, by (round, direction, kind), counted on encoded messages.

    Round 0 is the opening: the broadcast of a seed, or the exchange that makes a first head.
    """

    entries: Counter[tuple[int, Direction, str]] = field(default_factory=Counter)

    def count(self, round_number: int, direction: Direction, kind: Kind | str, blob: bytes, copies: int = 1) -> None:
        """Count the bits of an encoded message that was sent `copies` times.

        A `kind` given as text is the name of a step of a secure sum.
        """
        name = kind if isinstance(kind, str) else kind.name.lower()
        self.entries[round_number, direction, name] += 8 * len(blob) * copies

    def sum_bits(self, direction: Direction, *, round_number: int | None = None) -> int:
        """The number of bits in one direction: of one round, or of all rounds and the opening."""
        return sum(
            bits
            for (at, way, _), bits in self.entries.items()
            if way is direction and (round_number is None or at == round_number)
        )

    def sum_bits_by_kind(self, round_number: int) -> dict[str, int]:
        """The bits of one round as `{"statistics up": ..., "head down": ...}`."""
        return {f"{kind} {way.value}": bits for (at, way, kind), bits in self.entries.items() if at == round_number}

    def sum_bits_by_kind_after_opening(self) -> dict[str, int]:
        """The bits of all rounds except the opening as `{"statistics up": ..., "head down": ...}`."""
        found: Counter[str] = Counter()
        for (at, way, kind), bits in self.entries.items():
            found[f"{kind} {way.value}"] += bits if at else 0
        return {name: bits for name, bits in found.items() if bits}

    def as_rows(self) -> list[tuple[int, str, str, int]]:
        """The entries as plain rows, for a checkpoint."""
        return [(at, way.value, kind, bits) for (at, way, kind), bits in sorted(self.entries.items())]

    @staticmethod
    def from_rows(rows: list[tuple[int, str, str, int]]) -> Ledger:
        """The ledger with these rows, as `as_rows` returns them."""
        return Ledger(Counter({(at, Direction(way), kind): bits for at, way, kind, bits in rows}))
