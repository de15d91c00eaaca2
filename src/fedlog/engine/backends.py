"""Which backend trains which body, chosen once per run and said once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fedlog.data.federation import Federation
from fedlog.engine.local_sgd import Backend, Settings
from fedlog.engine.loop import LoopBackend
from fedlog.models.body import Body


class Choice(StrEnum):
    """What the user asked for."""

    AUTO = "auto"
    LOOP = "loop"


@dataclass(frozen=True)
class Engine:
    """How local training is computed."""

    settings: Settings = field(default_factory=Settings)
    choice: Choice = Choice.AUTO

    def backends(self, federation: Federation, bodies: Mapping[str, Body]) -> dict[str, Backend]:
        """A backend for each architecture, by its name."""
        return {name: LoopBackend(body, federation, self.settings) for name, body in bodies.items()}
