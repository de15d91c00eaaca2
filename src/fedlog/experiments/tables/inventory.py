"""List the experiments for `fedlog reproduce --list`: their data, finished cells, and estimated hours left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedlog.data.leaf import find_leaf_folders
from fedlog.data.sources import SOURCES, data_folder
from fedlog.errors import InputError
from fedlog.experiments.tables.catalog import EXPERIMENTS
from fedlog.experiments.tables.cells import Cell, CellState, Experiment, list_cells
from fedlog.experiments.tables.timing import estimate_seconds


@dataclass(frozen=True)
class ExperimentStatus:
    """One experiment: how many of its cells are done, and which data are missing."""

    experiment: Experiment
    missing: str | None  # which data are not on this machine, in words; None if all are
    cells: int
    done: int
    others: tuple[Path, ...]  # folders made with other settings
    hours_left: float | None  # None if data are missing

    def as_json(self) -> dict[str, Any]:
        """The status as JSON values."""
        experiment = self.experiment
        return {
            "name": experiment.name,
            "title": experiment.title,
            "data": list(experiment.data),
            "rows": [row.name for row in experiment.rows],
            "seeds": list(experiment.seeds),
            "cells": self.cells,
            "done": self.done,
            "made_with_other_settings": len(self.others),
            "folders_made_with_other_settings": [str(folder) for folder in self.others],
            "missing": self.missing,
            "hours_left": self.hours_left,
        }


def list_experiments(out: Path, data_dir: Path | None, jobs: int) -> list[ExperimentStatus]:
    """The status of every experiment in the results folder."""
    torch.set_num_threads(1)  # as in a cell, so that the timing is that of a cell
    return [_find_status(experiment, out, data_dir, jobs) for experiment in EXPERIMENTS.values()]


def _find_status(experiment: Experiment, out: Path, data_dir: Path | None, jobs: int) -> ExperimentStatus:
    found = list_cells(experiment, out)
    missing = _find_missing_data(experiment.data, data_folder(data_dir))
    by_state: dict[CellState, list[Cell]] = {state: [] for state in CellState}
    for cell in found:
        by_state[cell.state()].append(cell)
    done, others = by_state[CellState.DONE], tuple(cell.folder for cell in by_state[CellState.OTHER])
    hours = None if missing else _estimate_hours([cell for cell in found if cell not in done], done, jobs)
    return ExperimentStatus(experiment, missing, len(found), len(done), others, hours)


def _find_missing_data(names: Sequence[str], folder: Path) -> str | None:
    """What to say about the first of these data sets that is not in the folder; None if all are."""
    for name in names:
        if name == "leaf":
            try:
                find_leaf_folders(folder)
            except InputError as error:
                return error.one_line
        source = SOURCES.get(name.removesuffix("-selection"))
        if source is not None and not all((folder / file.path).is_file() for file in source.files):
            return f"{source.title} is not in {folder}; run `fedlog data fetch {source.name}`"
    return None


def _estimate_hours(to_do: Sequence[Cell], done: Sequence[Cell], jobs: int) -> float:
    """The estimated hours with this many jobs; the cells of one row are taken to need the same time."""
    waiting: dict[str, list[Cell]] = {}
    for cell in to_do:
        waiting.setdefault(cell.row.name, []).append(cell)
    seconds = sum(len(group) * estimate_seconds(group[0], done) for group in waiting.values())
    return seconds / 3600 / jobs
