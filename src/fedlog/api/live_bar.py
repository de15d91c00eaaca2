"""Progress bars on a terminal or in a notebook, and plain lines every few seconds elsewhere."""

from __future__ import annotations

import time
from importlib.util import find_spec
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


class LiveBar:
    """The base class of progress bars; it shows nothing on a quiet console."""

    def __init__(self, console: Console, seconds_between_lines: float) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._pause = seconds_between_lines
        self._told_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show_bar(self, *columns: str | ProgressColumn, title: str, total: int, done: int = 0) -> TaskID | None:
        """Show a bar and return the id of its first line; do nothing and return None if no bar can be drawn."""
        # In a notebook a bar needs ipywidgets; without them rich would warn and draw nothing.
        draws = find_spec("ipywidgets") is not None if self._console.is_jupyter else self._console.is_interactive
        if self._console.quiet or not draws:
            return None
        self._bar = Progress(*columns, console=self._console, transient=True)
        line = self._bar.add_task(title, total=total, completed=done, text="")
        self._bar.start()
        return line

    def _is_line_due(self) -> bool:
        """Whether the next plain line may be printed now; if so, start the wait for the line after it."""
        due = time.monotonic() - self._told_at >= self._pause
        if due:
            self._told_at = time.monotonic()
        return due


class ComparisonBar(LiveBar):
    """Shows how many rounds of a comparison are done."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, seconds_between_lines=10.0)
        self._rounds = 0

    def begin(self, rounds: int) -> None:
        """Show the bar; `rounds` is the number of rounds of all runs together."""
        self._rounds = rounds
        columns = (TextColumn("rounds"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[text]}"))
        self._show_bar(*columns, TimeRemainingColumn(), title="rounds", total=rounds)

    def advance(self, done: int, text: str) -> None:
        """Advance the bar or, without a bar, print a line every few seconds."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, text=text)
        elif self._is_line_due():
            self._console.print(f"{done} of {self._rounds} rounds  {text}", soft_wrap=True, markup=False)
