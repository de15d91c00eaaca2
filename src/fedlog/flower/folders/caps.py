"""What a site lets a server ask of it, whatever a plan says: the `[caps]` of `site.toml`.

A cap that the file does not name is at its safe default, so deleting a line removes no cap; `fedlog federate caps DIR
--remove NAME` does, and writes it down as "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from fedlog.errors import InputError

NONE = "none"


class Only(StrEnum):
    """The runs that a site takes part in."""

    ANY = "any"
    SECURE = "secure"
    """Those with a secure sum or with noise at the sites: the server sees no exact statistics of one site."""
    PRIVATE = "private"
    """Those with --privacy."""


@dataclass(frozen=True)
class Caps:
    """The most that a server can have of a site; None: no cap."""

    rounds: int | None = 1000
    """Of one run, steps that are asked again with another head included."""
    epochs: int | None = 100
    """Of one round, over all its stretches of training."""
    plain_runs: int | None = 10
    """New runs in which the server gets exact statistics of this site alone, in 24 hours: without noise of the site's
    own and without a secure sum."""
    only: Only = Only.ANY
    untrained: bool = False
    """Whether a plain run may ask for statistics of features that nobody has trained: a map that the server knows."""

    def without(self, name: str) -> Caps:
        """The caps with one of them removed."""
        removed: dict[str, Caps] = {
            "rounds": replace(self, rounds=None),
            "epochs": replace(self, epochs=None),
            "plain-runs": replace(self, plain_runs=None),
            "only": replace(self, only=Only.ANY),
            "untrained": replace(self, untrained=True),
        }
        if name not in removed:
            raise InputError(f"expected a cap of a site, found: {name}", hint=f"one of {', '.join(removed)}")
        return removed[name]

    def lines(self) -> list[str]:
        """The caps that are not at their defaults, as lines of a TOML table."""
        default, found = Caps(), []
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value != getattr(default, entry.name):
                found.append(f"{entry.name} = {_toml(value)}")
        return ["[caps]", *found] if found else []


def read_caps(stored: object, where: object) -> Caps:
    """The caps in a TOML table; InputError names the one that cannot be used."""
    if not isinstance(stored, Mapping):
        raise InputError(f"{where}: expected a table [caps], found: {stored!r}")
    known = {entry.name for entry in fields(Caps)}
    if unknown := sorted(set(stored) - known):
        raise InputError(f"{where}: unknown cap: {unknown[0]}", hint=f"one of {', '.join(sorted(known))}")
    values: dict[str, object] = {}
    for name, value in stored.items():
        fits = isinstance(value, bool) if name == "untrained" else _is_count(value) or value == NONE
        if name == "only":
            fits = value in list(Only)
        if not fits:
            raise InputError(f"{where}: expected a whole number or {NONE!r} for cap {name}, found: {value!r}")
        values[name] = Only(value) if name == "only" else None if value == NONE else value
    return Caps(**values)  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f'"{NONE if value is None else value}"'
