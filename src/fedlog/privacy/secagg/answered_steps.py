"""The list of the steps that a client has answered, so that it answers each only once, even after a restart."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fedlog.files.durable import PRIVATE_MODE, create_file, sync_file_names
from fedlog.privacy.secagg.encoding import RefusalError


class AnsweredSteps(Protocol):
    """The list of steps that a client has answered; it must outlive the client's process."""

    def mark_answered(self, round_name: str, step: str) -> None:
        """Mark the step as answered; raise RefusalError if it was answered before."""


@dataclass
class AnsweredStepsInMemory:
    """The answered steps in memory, for simulation: a simulated client does not restart."""

    answered: set[tuple[str, str]] = field(default_factory=set)

    def mark_answered(self, round_name: str, step: str) -> None:
        """Mark the step as answered; raise RefusalError if it was answered before."""
        if (round_name, step) in self.answered:
            raise RefusalError(
                f"step {step} of round {round_name} was answered before: this client answers each step only once"
            )
        self.answered.add((round_name, step))


@dataclass(frozen=True)
class AnsweredStepsOnDisk:
    """The answered steps on disk: one empty file for each step, written before `mark_answered` returns."""

    folder: Path

    def is_answered(self, round_name: str, step: str) -> bool:
        """Whether the step was answered before; this does not mark the step."""
        return (self.folder / f"{round_name}-{step}").exists()

    def mark_answered(self, round_name: str, step: str) -> None:
        """Mark the step as answered, on disk; raise RefusalError if this process or another has answered it before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{round_name}-{step}"
        try:
            # Of two processes that ask at the same time, one is refused.
            create_file(path, "", PRIVATE_MODE)
        except FileExistsError:
            raise RefusalError(
                f"step {step} of round {round_name} was answered before: {path}",
                hint="this client does not answer in the rest of the round: its masks may be used for one vector only",
            ) from None
        sync_file_names(self.folder)
