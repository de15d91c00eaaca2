"""Record the releases of a run, in memory or in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedlog.privacy.accounting import Event, add_if_covered
from fedlog.privacy.guarantee import Budget
from fedlog.privacy.release_log import record_release


class Releases(Protocol):
    """A place where every release is recorded before it leaves."""

    def record(self, upcoming: Event, budget: Budget) -> None:
        """Record the release; BudgetSpentError if the budget does not cover it."""


@dataclass
class ReleasesInMemory:
    """The releases of a run without a folder, kept in memory only."""

    events: tuple[Event, ...] = ()

    def record(self, upcoming: Event, budget: Budget) -> None:
        """Record the release; BudgetSpentError if the budget does not cover it."""
        self.events = add_if_covered(self.events, upcoming, budget)


@dataclass(frozen=True)
class ReleasesInFile:
    """The releases of a run with a folder, in a file that also states the budget."""

    path: Path

    def record(self, upcoming: Event, budget: Budget) -> None:
        """Record the release; BudgetSpentError if the budget in the file does not cover it."""
        record_release(self.path, upcoming)
