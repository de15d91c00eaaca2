"""One bar for all rounds of all runs of a comparison; plain lines now and then where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class ComparisonBar:
    """Tells on a console how far a comparison is; a quiet console hears nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._rounds = 0
        self._told_at = time.monotonic()

    def __enter__(self) -> ComparisonBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, rounds: int) -> None:
        """Show the bar."""
        self._rounds = rounds
        if self._console.is_interactive and not self._console.quiet:
            columns = (TextColumn("rounds"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[said]}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True)
            self._bar.add_task("rounds", total=rounds, said="")
            self._bar.start()

    def advance(self, done: int, said: str) -> None:
        """Move the bar, or print a line now and then."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, said=said)
        elif time.monotonic() - self._told_at >= SECONDS_BETWEEN_LINES:
            self._told_at = time.monotonic()
            self._console.print(f"{done} of {self._rounds} rounds  {said}", soft_wrap=True, markup=False)
