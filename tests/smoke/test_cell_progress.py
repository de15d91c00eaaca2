"""The display of `fedlog reproduce` while cells run: a bar for all cells, and a line for each with its time left."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fedlog.api import progress
from fedlog.cli import reproduce
from fedlog.cli.reproduce import CellProgress
from fedlog.experiments.tables.catalog import EXPERIMENTS
from fedlog.experiments.tables.cells import list_cells
from fedlog.experiments.workers.cell_process import Outcome
from fedlog.experiments.workers.runner import CellSnapshot

FIRST, SECOND, THIRD = list_cells(EXPERIMENTS["table-mnist"], Path("nowhere"), ("fedlog",), (0, 1, 2), 20)


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stand_in = Clock()
    for module in (reproduce, progress):
        monkeypatch.setattr(module, "time", stand_in)
    return stand_in


def at_work(done: int) -> list[CellSnapshot]:
    """The status of two cells: `done` rounds of the first, three seconds each, and the second not begun."""
    return [CellSnapshot(FIRST, done, 0.9712, 3.0), CellSnapshot(SECOND, 0, None, None)]


def test_a_terminal_shows_one_bar_and_a_line_for_each_cell_at_work(clock: Clock) -> None:
    screen = io.StringIO()
    with CellProgress(Console(file=screen, force_terminal=True, width=160, highlight=False)) as progress:
        progress.on_start([FIRST, SECOND], [THIRD])
        progress.on_progress(at_work(0))
        clock.now = 25.0
        progress.on_progress(at_work(5))
    shown = screen.getvalue()
    assert "2 cells to run, 1 done before" in shown
    # Five of forty rounds took 25 seconds; the cell itself has fifteen rounds of three seconds left.
    assert "0/2 cells, 5/40 rounds, about 3 min left" in shown
    assert f"  {FIRST.name}" in shown
    assert "97.12 %, about 45 s left" in shown
    assert SECOND.name not in shown


@pytest.mark.parametrize("dumb", [False, True])
def test_elsewhere_plain_lines_come_now_and_then(dumb: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file, or on a terminal that cannot draw."""
    if dumb:
        monkeypatch.setenv("TERM", "dumb")
    screen = io.StringIO()
    with CellProgress(Console(file=screen, force_terminal=dumb, width=160, highlight=False)) as progress:
        progress.on_start([FIRST, SECOND], [])
        for clock.now in range(100):
            progress.on_progress(at_work(int(clock.now) // 10))
        progress.on_end(Outcome(FIRST.name, 0.98, None))
        progress.on_end(Outcome(SECOND.name, None, "no room"))
    lines = screen.getvalue().splitlines()
    assert lines[0] == "2 cells to run"
    assert lines[1:3] == [
        "0/2 cells, 3/40 rounds, about 6 min left",
        f"  {FIRST.name}: round 3/20, 97.12 %, about 51 s left",
    ]
    assert lines[7:] == [  # after two lines each at 30, 60 and 90 seconds
        f"{FIRST.name}: done, accuracy 98.00 %",
        f"{SECOND.name}: failed: no room",
    ]


def test_an_interrupted_cell_goes_on_and_its_old_rounds_do_not_count_as_fast(clock: Clock) -> None:
    screen = io.StringIO()
    with CellProgress(Console(file=screen, width=160, highlight=False)) as progress:
        progress.on_start([FIRST, SECOND], [])
        progress.on_progress(at_work(10))
        clock.now = 40.0
        progress.on_progress(at_work(12))
    # Two rounds in forty seconds, not twelve.
    assert "12/40 rounds, about 9 min left" in screen.getvalue()
