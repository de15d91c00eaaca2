"""The count of every bit that crossed, by round, direction and kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fedlog.wire.message import Kind


class Direction(StrEnum):
    """Up is from a client to the server; down is back, one copy for each client it goes to."""

    UP = "up"
    DOWN = "down"


@dataclass
class Ledger:
    """Bits by (round, direction, kind). It takes encoded messages only, so nothing is counted that was not serialised.

    Round 0 is the opening: a seed, or the exchange behind a first head.
    """

    entries: Counter[tuple[int, Direction, str]] = field(default_factory=Counter)

    def book(self, round_number: int, direction: Direction, kind: Kind | str, blob: bytes, copies: int = 1) -> None:
        """Count one encoded message, once for each copy that crossed; steps of a secure sum have names of their own."""
        name = kind if isinstance(kind, str) else kind.name.lower()
        self.entries[round_number, direction, name] += 8 * len(blob) * copies

    def bits(self, direction: Direction, *, round_number: int | None = None) -> int:
        """All bits in one direction, of one round or of all."""
        return sum(
            bits
            for (at, way, _), bits in self.entries.items()
            if way is direction and (round_number is None or at == round_number)
        )

    def by_kind(self, round_number: int) -> dict[str, int]:
        """The bits of one round as `{"statistics up": ..., "head down": ...}`."""
        return {f"{kind} {way.value}": bits for (at, way, kind), bits in self.entries.items() if at == round_number}

    def all_kinds(self) -> dict[str, int]:
        """The bits of all rounds as `by_kind` writes them; those of the opening apart from them."""
        found: Counter[str] = Counter()
        for (at, way, kind), bits in self.entries.items():
            found[f"{kind} {way.value}"] += bits if at else 0
        return {name: bits for name, bits in found.items() if bits}

    def as_rows(self) -> list[tuple[int, str, str, int]]:
        """The entries as plain rows, for a checkpoint."""
        return [(at, way.value, kind, bits) for (at, way, kind), bits in sorted(self.entries.items())]

    @staticmethod
    def from_rows(rows: list[tuple[int, str, str, int]]) -> Ledger:
        """The ledger that `as_rows` came from."""
        entries: Mapping[tuple[int, Direction, str], int] = {
            (at, Direction(way), kind): bits for at, way, kind, bits in rows
        }
        return Ledger(Counter(entries))
