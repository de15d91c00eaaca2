"""A site's caps: the most that a server can ask of it, whatever a plan says. They are `[caps]` in `site.toml`.

A cap that is not in the file has its safe default, so deleting a line removes no cap. `fedlog federate caps DIR
--remove NAME` removes it: the file then says "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from fedlog.errors import InputError
from fedlog.files.toml import format_toml
from fedlog.settings.fields import Section, type_hints

NONE = "none"
Count = Annotated[int, Meta(ge=0)]


class AcceptedRuns(StrEnum):
    """Which runs a site takes part in."""

    ANY = "any"
    SECURE = "secure"
    """Runs with a secure sum or with local noise: the server sees no exact statistics of a single site."""
    PRIVATE = "private"
    """Runs with --privacy."""


@dataclass(frozen=True)
class Caps(Section):
    """The most that a server can get from a site; None means no cap."""

    rounds: Count | None = 1000
    """The most rounds of one run; a step that is asked again with another head counts again."""
    epochs: Count | None = 100
    """The most epochs of one round, over all its training phases."""
    plain_runs: Count | None = 10
    """The most new plain runs in 24 hours: runs without a secure sum and without noise that the site adds, in which the
    server gets exact statistics of this site alone."""
    only: AcceptedRuns = AcceptedRuns.ANY
    untrained: bool = False
    """Whether a plain run may ask for statistics of untrained features, which the server could trace back to rows."""

    def without_cap(self, name: str) -> Caps:
        """The caps with one of them removed."""
        free = {"rounds": None, "epochs": None, "plain-runs": None, "only": AcceptedRuns.ANY, "untrained": True}
        if name not in free:
            raise InputError(f"expected a cap of a site, found: {name}", hint=f"one of {', '.join(free)}")
        return replace(self, **{name.replace("-", "_"): free[name]})  # type: ignore[arg-type]

    def to_toml(self) -> str:
        """The TOML table `[caps]` with the caps that differ from their defaults; empty if none does."""
        usual = asdict(Caps())
        changed = {name: NONE if cap is None else cap for name, cap in asdict(self).items() if cap != usual[name]}
        return f"[caps]\n{format_toml(changed)}" if changed else ""


def read_caps(stored: object, where: object) -> Caps:
    """The caps in a TOML table from the file `where`; InputError names a cap that cannot be used."""
    if not isinstance(stored, Mapping):
        raise InputError(f"{where}: expected a table [caps], found: {stored!r}")
    known = type_hints(Caps)
    if unknown := sorted(set(stored) - set(known)):
        raise InputError(f"{where}: unknown cap in [caps]: {unknown[0]}", hint=f"one of {', '.join(sorted(known))}")
    try:
        return Caps(**{name: None if value == NONE else value for name, value in stored.items()})  # type: ignore[arg-type]
    except InputError as error:
        usual = "`fedlog federate caps DIR --rounds 100` sets a cap, `--remove rounds` removes it"
        raise InputError(f"{where}, [caps]: {error.message}", hint=error.hint or usual) from None
