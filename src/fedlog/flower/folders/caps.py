"""The most that a site lets a server ask of it, whatever a plan says: the `[caps]` of `site.toml`.

A cap that the file does not name is at its safe default, so deleting a line removes no cap; `fedlog federate caps DIR
--remove NAME` does, and writes it down as "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from fedlog.errors import InputError
from fedlog.settings.fields import Section, type_hints

NONE = "none"
Count = Annotated[int, Meta(ge=0)]


class Only(StrEnum):
    """The runs that a site takes part in."""

    ANY = "any"
    SECURE = "secure"
    """Those with a secure sum or with noise at the sites: the server sees no exact statistics of one site."""
    PRIVATE = "private"
    """Those with --privacy."""


@dataclass(frozen=True)
class Caps(Section):
    """The most that a server can have of a site; None: no cap."""

    rounds: Count | None = 1000
    """Of one run, steps that are asked again with another head included."""
    epochs: Count | None = 100
    """Of one round, over all its stretches of training."""
    plain_runs: Count | None = 10
    """New runs in which the server gets exact statistics of this site alone, in 24 hours: without noise of the site's
    own and without a secure sum."""
    only: Only = Only.ANY
    untrained: bool = False
    """Whether a plain run may ask for statistics of features that nobody has trained: a map that the server knows."""

    def without(self, name: str) -> Caps:
        """The caps with one of them removed."""
        free = {"rounds": None, "epochs": None, "plain-runs": None, "only": Only.ANY, "untrained": True}
        if name not in free:
            raise InputError(f"expected a cap of a site, found: {name}", hint=f"one of {', '.join(free)}")
        return replace(self, **{name.replace("-", "_"): free[name]})  # type: ignore[arg-type]

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
    known = type_hints(Caps)
    if unknown := sorted(set(stored) - set(known)):
        raise InputError(f"{where}: unknown cap: {unknown[0]}", hint=f"one of {', '.join(sorted(known))}")
    try:
        return Caps(**{name: None if value == NONE else value for name, value in stored.items()})  # type: ignore[arg-type]
    except InputError as error:
        usual = "`fedlog federate caps DIR --rounds 100` sets a cap, `--remove rounds` removes it"
        raise InputError(f"{where}, [caps]: {error.message}", hint=error.hint or usual) from None


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else f'"{NONE if value is None else value}"'
