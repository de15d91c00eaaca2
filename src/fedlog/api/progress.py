"""Show progress: as a bar on a terminal or in a notebook, elsewhere as a plain line every few seconds."""

from __future__ import annotations

import time
from importlib.util import find_spec
from types import TracebackType
from typing import Self

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run.callbacks import Callback, RunStart
from fedlog.experiments.run.privacy import list_privacy_notices
from fedlog.experiments.run.records import Summary
from fedlog.files.duration_text import describe_duration
from fedlog.wire.bits_text import describe_bits
from fedlog.wire.ledger import Direction, Ledger

WIDE_ENOUGH_FOR_A_BAR = 70


class LiveBar:
    """The base class of progress bars. On a quiet console it shows nothing."""

    def __init__(self, console: Console, seconds_between_lines: float) -> None:
        self._console = console
        self._bar: rich.progress.Progress | None = None
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
        """Show a progress bar and return rich's id of it; return None if the console cannot draw one."""
        # In a notebook a bar needs ipywidgets; without them rich would warn and draw nothing.
        draws = find_spec("ipywidgets") is not None if self._console.is_jupyter else self._console.is_interactive
        if self._console.quiet or not draws:
            return None
        self._bar = rich.progress.Progress(*columns, console=self._console, transient=True)
        line = self._bar.add_task(title, total=total, completed=done, text="")
        self._bar.start()
        return line

    def _should_print_line(self) -> bool:
        """Return whether enough time has passed since the last line; if so, the time is counted anew from now on."""
        due = time.monotonic() - self._told_at >= self._pause
        if due:
            self._told_at = time.monotonic()
        return due


class ComparisonBar(LiveBar):
    """Shows how many rounds of a comparison are done."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, seconds_between_lines=10.0)

    def show(self, done: int, rounds: int, text: str) -> None:
        """Show the bar with `done` of all `rounds`; where no bar can be drawn, print a line every few seconds."""
        if self._bar is None:
            columns = (TextColumn("rounds"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[text]}"))
            self._show_bar(*columns, TimeRemainingColumn(), title="rounds", total=rounds)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, text=text)
        elif self._should_print_line():
            self._console.print(f"{done} of {rounds} rounds  {text}", soft_wrap=True, markup=False)


class Progress(LiveBar, Callback):
    """Shows a run's progress on `console` and its warnings on `loud`, so that a quiet `console` hides no warning."""

    def __init__(self, console: Console, loud: Console | None = None) -> None:
        super().__init__(console, seconds_between_lines=5.0)
        self._loud = loud or console
        self._rounds = 0
        self._ledger = Ledger()
        self._seconds: list[float] = []

    def run_began(self, start: RunStart) -> None:
        """Print the method, the data and the main settings, then show the progress bar."""
        spec, simulation, done = start.run.spec, start.simulation, start.done
        self._rounds = simulation.settings.rounds
        self._ledger = simulation.server.ledger
        shards = len(simulation.federation.shards)
        rounds = f"{self._rounds} round{'s' if self._rounds != 1 else ''}"
        self._print_line(f"{spec.method} on {spec.data}: {shards} clients, {rounds}, seed {spec.seed}")
        for body in {body.name: body for body in simulation.bodies}.values():
            self._print_line(f"  {simulation.engine.explain(body)}")
        for line in simulation.algorithm.advice(self._rounds):
            self._print_line(f"  {line}")
        for line in (*simulation.federation.notes, *list_privacy_notices(spec, simulation)):
            self._print_line(f"  {line}")
        if done:
            self._print_line(f"  continuing after round {done[-1].round}")
        bar = (BarColumn(),) if self._console.width >= WIDE_ENOUGH_FOR_A_BAR else ()
        columns = (TextColumn("round {task.completed}/{task.total}"), *bar, TextColumn("{task.fields[text]}"))
        self._show_bar(*columns, title="rounds", total=self._rounds, done=len(done))

    def features_computed(self, done: int, records: int) -> None:
        """Update the progress bar of computed features; where no bar can be drawn, print a line every few seconds."""
        if self._bar is None:
            self._show_bar(TextColumn("features"), MofNCompleteColumn(), BarColumn(), title="features", total=records)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=records)
            if done == records:
                self.close()
        elif done == records or self._should_print_line():
            self._print_line(f"features {done}/{records}")

    def round_ended(self, record: RoundRecord) -> None:
        """Update the progress bar of rounds; where no bar can be drawn, print a line every few seconds."""
        bits = self._ledger.sum_bits(Direction.UP) + self._ledger.sum_bits(Direction.DOWN)
        self._seconds.append(record.seconds)
        recent = self._seconds[-10:]
        left = (self._rounds - record.round) * sum(recent) / len(recent)
        what = "inside 90 % intervals" if record.rmse_per_client else "accuracy"
        accuracy = f"{what} {100 * record.accuracy_mean_over_clients:.2f} %"
        text = f"{accuracy}  {describe_bits(bits)}  about {describe_duration(left)} left"
        for client, reason in record.refused.items():
            self._print_line(f"warning: round {record.round} goes on without {client}: {reason}")
        for client, share in record.capped.items():
            self._print_line(
                f"warning: round {record.round}: {client} stated {100 * share:.3g} % of all records and was capped"
            )
        if self._bar is not None:
            room = self._console.width - len(f"round {record.round}/{self._rounds}  ")
            shown = text if len(text) < room else accuracy  # on a narrow terminal the accuracy alone
            self._bar.update(self._bar.task_ids[0], completed=record.round, text=shown)
            return
        if self._should_print_line() or record.round in (1, self._rounds):
            self._print_line(f"round {record.round}/{self._rounds}  {text}")

    def run_ended(self, summary: Summary, trained: bool) -> None:
        """Remove the progress bar; if the run was finished before and nothing was trained, say so."""
        self.close()
        if not trained:
            self._print_line(
                f"{summary.run_dir} was finished before: nothing was trained; a new run needs another folder"
            )

    def _print_line(self, line: str) -> None:
        console = self._loud if line.lstrip().startswith("warning: ") else self._console
        # Without markup, because names may hold brackets; without line breaks, so that lines can be searched.
        console.print(line, soft_wrap=True, markup=False)


def make_progress_callbacks(wanted: bool | None) -> list[Progress]:
    """Return a list with one callback that shows progress, or [] if `wanted` is False.

    With `wanted=None`, progress is shown in terminals and notebooks only.
    """
    console = Console(stderr=True, highlight=False)
    if wanted is False or (wanted is None and not (console.is_terminal or console.is_jupyter)):
        return []
    return [Progress(console)]
