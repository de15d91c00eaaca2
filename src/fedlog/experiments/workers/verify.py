"""Check that the present code still gives the results of finished cells (runs): repeat their first rounds.

The outcome is written beside the records, to `verified.json`, so that a table can name the cells whose results differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

from fedlog.engine.software import list_software_versions
from fedlog.errors import InputError
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import CONFIG, read_spec
from fedlog.experiments.run.prepare import make_simulation
from fedlog.experiments.tables.cells import Cell, CellState, ExperimentKind
from fedlog.experiments.tables.finished_cells import VERIFIED, VerificationResult, read_verification_results
from fedlog.files.json_text import parse_json, write_json
from fedlog.settings.resolve import resolve


def verify_cells(cells: list[Cell], rounds: int, data_dir: Path | None) -> Iterator[tuple[Cell, VerificationResult]]:
    """Run the first rounds of each finished cell again; record and yield whether the results are the same."""
    done = [cell for cell in cells if cell.read_state() is CellState.DONE]
    if not done:
        raise InputError(
            f"experiment {cells[0].experiment.name} has no finished run to verify in {cells[0].folder.parent.parent}",
            hint="`fedlog reproduce --list` shows what has been run",
        )
    if done[0].experiment.kind is ExperimentKind.SYNTHETIC:
        raise InputError(
            f"experiment {cells[0].experiment.name} cannot be verified: it has no rounds to repeat",
            hint="`fedlog reproduce --list` shows other experiments",
        )
    for cell in done:
        found = _repeat_rounds(cell, rounds, data_dir)
        path = cell.folder.parent.parent / VERIFIED
        known = {**read_verification_results(path.parent), f"{cell.row.name}/{cell.folder.name}": found}
        write_json(path, {name: asdict(each) for name, each in sorted(known.items())})
        yield cell, found


def _repeat_rounds(cell: Cell, rounds: int, data_dir: Path | None) -> VerificationResult:
    """Run the first rounds of a finished cell again, and compare each client's correct predictions with the records."""
    stored = records.read_rounds(cell.records_file)[:rounds]
    spec = replace(read_spec(cell.folder), jobs=1, data_dir=None if data_dir is None else str(data_dir))
    with make_simulation(resolve(spec)) as simulation:
        pairs = zip(stored, islice(simulation.rounds(), len(stored)), strict=True)
        differing = (before.round for before, now in pairs if before.correct_per_client != now.correct_per_client)
        now, then = list_software_versions(), parse_json((cell.folder / CONFIG).read_text())["made_with"]
        return VerificationResult(
            len(stored), next(differing, None), now["commit"], now["processor"], then.get("processor", "")
        )
