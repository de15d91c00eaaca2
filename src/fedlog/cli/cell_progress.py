"""Show the progress of `fedlog reproduce`: a bar for all cells, and a line for each that is running."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fedlog.api.progress import LiveBar
from fedlog.experiments.tables.cells import Cell
from fedlog.experiments.workers.cell_process import Outcome
from fedlog.experiments.workers.runner import CellStatus
from fedlog.files.duration_text import describe_duration


class CellProgress(LiveBar):
    """Shows the progress of the cells on standard error."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, seconds_between_lines=30.0)
        self._lines: dict[str, TaskID] = {}
        self._whole: TaskID | None = None
        self._cells = 0
        self._ended: set[str] = set()
        self._first_rounds: int | None = None
        self._started = time.monotonic()

    def on_start(self, to_do: Sequence[Cell], skipped: Sequence[Cell]) -> None:
        """Print how many cells are to run, and show the bar."""
        self._cells = len(to_do)
        done_before = f", {len(skipped)} done before" if skipped else ""
        self._console.print(f"{len(to_do)} cells to run{done_before}")
        if to_do:
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            steps = sum(cell.steps for cell in to_do)
            self._whole = self._show_bar(*columns, TimeElapsedColumn(), title="all cells", total=steps)

    def on_progress(self, standings: Sequence[CellStatus]) -> None:
        """Move the bars, or print lines now and then."""
        running = [s for s in standings if s.done and s.cell.name not in self._ended]
        done, steps = sum(s.done for s in standings), sum(s.cell.steps for s in standings)
        if self._first_rounds is None:
            self._first_rounds, self._started = done, time.monotonic()
        text = f"{len(self._ended)}/{self._cells} cells, {done}/{steps} rounds{self._describe_time_left(done, steps)}"
        if self._bar is not None and self._whole is not None:
            self._bar.update(self._whole, completed=done, text=text)
            for standing in running:
                self._show(self._bar, standing)
        elif self._is_line_due():
            self._console.print(text)
            for standing in running:
                at = f"round {standing.done}/{standing.cell.steps}"
                self._console.print(f"  {standing.cell.name}: {at}{_describe_status(standing)}")

    def on_end(self, outcome: Outcome) -> None:
        """Print how the cell ended, and remove its line."""
        self._ended.add(outcome.cell)
        if self._bar is not None and outcome.cell in self._lines:
            self._bar.remove_task(self._lines.pop(outcome.cell))
        accuracy = "" if outcome.accuracy is None else f", accuracy {100 * outcome.accuracy:.2f} %"
        how = f"done{accuracy}" if outcome.error is None else f"failed: {outcome.error}"
        self._console.print(f"{outcome.cell}: {how}")

    def _show(self, bar: Progress, standing: CellStatus) -> None:
        name = standing.cell.name
        if name not in self._lines:
            self._lines[name] = bar.add_task(f"  {name}", total=standing.cell.steps, text="")
        bar.update(self._lines[name], completed=standing.done, text=_describe_status(standing).lstrip(", "))

    def _describe_time_left(self, done: int, steps: int) -> str:
        """The estimated time left, from the rounds done so far; cells differ, so it is rough at first."""
        fresh = done - (self._first_rounds or 0)
        if fresh <= 0:
            return ""
        return f", about {describe_duration((steps - done) * (time.monotonic() - self._started) / fresh)} left"


def _describe_status(standing: CellStatus) -> str:
    accuracy = "" if standing.accuracy is None else f", {100 * standing.accuracy:.2f} %"
    left = "" if standing.seconds_left is None else f", about {describe_duration(standing.seconds_left)} left"
    return accuracy + left
