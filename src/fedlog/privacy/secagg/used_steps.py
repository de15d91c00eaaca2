"""Which steps of which rounds a client has answered: one answer each, also after a restart."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedlog.files.durable import PRIVATE_MODE, create_file, force_names
from fedlog.privacy.secagg.refusal import RefusalError


class UsedSteps(Protocol):
    """A memory that outlives the client."""

    def claim(self, round_name: str, step: str) -> None:
        """Nothing, once; `RefusalError` ever after for the same round and step."""


@dataclass
class UsedStepsInMemory:
    """For simulation: a simulated client does not restart."""

    claimed: set[tuple[str, str]] = field(default_factory=set)

    def claim(self, round_name: str, step: str) -> None:
        """Nothing, once; `RefusalError` ever after for the same round and step."""
        if (round_name, step) in self.claimed:
            raise RefusalError(f"step {step} of round {round_name} was answered before")
        self.claimed.add((round_name, step))


@dataclass(frozen=True)
class UsedStepsOnDisk:
    """One empty file for each step, forced to disk before `claim` returns."""

    folder: Path

    def holds(self, round_name: str, step: str) -> bool:
        """Whether the step was claimed: for those who would rather not begin what cannot be sent."""
        return (self.folder / f"{round_name}-{step}").exists()

    def claim(self, round_name: str, step: str) -> None:
        """Nothing, once; `RefusalError` ever after for the same round and step, whichever process asks."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{round_name}-{step}"
        try:
            # Of two processes that ask at the same time, one is refused.
            create_file(path, "", PRIVATE_MODE)
        except FileExistsError:
            raise RefusalError(
                f"step {step} of round {round_name} was answered before: {path}",
                hint="this client sits out the rest of the round; its masks serve one vector only",
            ) from None
        force_names(self.folder)
