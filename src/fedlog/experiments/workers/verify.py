"""Check that today's code repeats committed cells: run their first rounds again and compare every client's result.

The outcome is written beside the records, to `verified.json`, so that a table can name the cells that do not repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from fedlog.engine.software import made_with
from fedlog.errors import InputError
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import read_spec
from fedlog.experiments.run.prepare import prepare
from fedlog.experiments.tables.cells import Cell, CellState, Shape
from fedlog.experiments.tables.finished_cells import VERIFIED, Verification, read_verifications
from fedlog.files.json_text import write_json
from fedlog.settings.resolve import resolve


@dataclass(frozen=True)
class Repetition:
    """The outcome of running the first rounds of a cell again."""

    cell: Cell
    rounds: int
    first_difference: int | None  # the first round that differs; None if all clients have the same results


def repeat_rounds(cell: Cell, rounds: int, data_dir: Path | None) -> Repetition:
    """Run the first rounds of a finished cell again, and compare each client's correct predictions with the records."""
    stored = records.read(cell.records)[:rounds]
    spec = replace(read_spec(cell.folder), jobs=1, data_dir=None if data_dir is None else str(data_dir))
    with prepare(resolve(spec)) as simulation:
        for before, now in zip(stored, islice(simulation.rounds(), len(stored)), strict=True):
            if before.correct_per_client != now.correct_per_client:
                return Repetition(cell, len(stored), before.round)
    return Repetition(cell, len(stored), None)


def verify_cells(
    cells: list[Cell], rounds: int, data_dir: Path | None, on_cell: Callable[[Repetition], None]
) -> list[Repetition]:
    """Repeat the first rounds of every finished cell, and write each outcome to `verified.json`."""
    done = [cell for cell in cells if cell.state() is CellState.DONE]
    if not done or done[0].experiment.shape is Shape.SYNTHETIC:
        reason = "has no rounds to repeat" if done else "has no finished cell"
        raise InputError(f"experiment {cells[0].experiment.name} {reason}", hint="fedlog reproduce --list")
    found = []
    for cell in done:
        found.append(repeat_rounds(cell, rounds, data_dir))
        _record(found[-1])
        on_cell(found[-1])
    return found


def _record(found: Repetition) -> None:
    """Add the outcome to the experiment's `verified.json`."""
    path = found.cell.folder.parent.parent / VERIFIED
    known = read_verifications(path.parent)
    known[f"{found.cell.row.name}/{found.cell.folder.name}"] = Verification(
        found.rounds, found.first_difference, made_with()["commit"]
    )
    write_json(path, {name: asdict(each) for name, each in sorted(known.items())})
