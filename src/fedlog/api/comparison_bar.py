"""One bar for all rounds of all runs of a comparison; plain lines now and then where there is no terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from fedlog.api.live_bar import LiveBar


class ComparisonBar(LiveBar):
    """Tells on a console how far a comparison is."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, seconds_between_lines=10.0)
        self._rounds = 0

    def begin(self, rounds: int) -> None:
        """Show the bar."""
        self._rounds = rounds
        columns = (TextColumn("rounds"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[said]}"))
        self._show_bar(*columns, TimeRemainingColumn(), title="rounds", total=rounds)

    def advance(self, done: int, said: str) -> None:
        """Move the bar, or print a line now and then."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, said=said)
        elif self._is_line_due():
            self._console.print(f"{done} of {self._rounds} rounds  {said}", soft_wrap=True, markup=False)
