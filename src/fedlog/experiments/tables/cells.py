"""What an experiment is, as data: rows (a method and its settings) times seeds, and the cells they make on disk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from functools import cached_property
from pathlib import Path

from fedlog.errors import InputError
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import CONFIG, RECORDS, SUMMARY, read_finished_summary, read_spec
from fedlog.files.names import did_you_mean
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec


class Arrow(StrEnum):
    """Significantly higher or lower than the reference at p < 0.01, or (small) at p < 0.05."""

    UP = "⇑"
    DOWN = "⇓"
    SMALL_DOWN = "↓"
    NONE = ""


@dataclass(frozen=True)
class Printed:
    """The paper's printed figures for one row: per cent, and bits to the threshold."""

    accuracy: float
    accuracy_error: float
    accuracy_arrow: Arrow = Arrow.NONE
    cost: float | None = None
    cost_text: str = ""  # digits and unit as printed, with the standard error
    cost_arrow: Arrow = Arrow.NONE


@dataclass(frozen=True)
class Row:
    """One line of a table: a name that is also its folder's, and a run whose seed is still open."""

    name: str
    label: str
    spec: RunSpec
    printed: Printed | None = None
    seeds: tuple[int, ...] = ()  # where it needs fewer than the experiment has


class Shape(Enum):
    """How an experiment's outcome is read."""

    TABLE = "methods compared at the final round, with bits to a threshold"
    CURVES = "methods compared over the rounds"
    GRID = "settings compared on validation records"
    SYNTHETIC = "one round, by the number of local iterations"
    PRIVACY = "accuracy by privacy budget"
    CONDITIONS = "methods against training alone, in several conditions"
    TUNED = "methods at their selected settings, beside the paper's settings"


@dataclass(frozen=True)
class Experiment:
    """A table or figure: what to run, on which seeds, and what to compare it with."""

    name: str
    title: str
    shape: Shape
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]
    threshold: int | None = None  # per cent
    reference: str | None = None  # the row that the others are tested against
    remarks: tuple[str, ...] = field(default=())
    cut_from: str | None = None  # the experiment that this one is, with another number of rounds

    @property
    def command(self) -> str:
        """The command that runs the experiment."""
        if self.cut_from is None:
            return f"fedlog reproduce {self.name}"
        return f"fedlog reproduce {self.cut_from} --rounds {self.rows[0].spec.rounds}"

    def row(self, name: str) -> Row:
        """The row of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        hint = did_you_mean(name, names, f"it has {', '.join(names)}")
        raise InputError(f"experiment {self.name} has no row: {name}", hint=hint)

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets it needs."""
        return tuple(dict.fromkeys(row.spec.data for row in self.rows))

    @property
    def judged_on(self) -> str:
        """The held-out records its accuracies are taken on."""
        return self.rows[0].spec.judge.parts[0].value


class CellState(Enum):
    """The state of a cell on disk."""

    DONE = "done"
    BEGUN = "begun"
    OTHER = "made with other settings"
    ABSENT = "not run"


@dataclass(frozen=True)
class Cell:
    """One run of an experiment: a row, a seed, and the folder its records go to."""

    experiment: Experiment
    row: Row
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """The cell's name, as it is shown."""
        return f"{self.row.name} seed {self.seed}"

    @cached_property
    def spec(self) -> RunSpec:
        """The resolved run; found once, since progress asks every cell for it each second."""
        return resolve(replace(self.row.spec, seed=self.seed, jobs=1)).spec

    @property
    def steps(self) -> int:
        """The number of rounds, or of epochs on synthetic data: one line of records each."""
        if self.experiment.shape is Shape.SYNTHETIC:
            return int(self.spec.options["epochs"])
        return self.spec.rounds or 0

    @property
    def records(self) -> Path:
        """The file of its records."""
        return self.folder / RECORDS

    def state(self) -> CellState:
        """The state on disk, compared with the settings that are asked for."""
        if not (self.folder / CONFIG).exists():
            return CellState.ABSENT
        if _read_digest(self.folder) != self.spec.digest:
            return CellState.OTHER
        return CellState.DONE if self._is_whole() else CellState.BEGUN

    def _is_whole(self) -> bool:
        """Whether it ended and no line is missing: as many as its summary says, since a training run may stop early."""
        if self.experiment.shape is Shape.SYNTHETIC:
            return (self.folder / SUMMARY).exists() and records.count(self.records) == self.steps
        try:
            return read_finished_summary(self.folder) is not None
        except InputError:
            return False


def _read_digest(folder: Path) -> str | None:
    """The digest of the settings that made the folder; None if they cannot be read or their method has changed."""
    try:
        # Resolved again: an option that was added to a method since then takes its default in both. The records of a
        # LEAF folder are compared when a cell runs: a report is made where there are no data.
        return resolve(replace(read_spec(folder), data_sha256=None)).digest
    except InputError:
        return None


@dataclass(frozen=True)
class CellChoice:
    """Which part of an experiment is wanted; an empty tuple means all of it."""

    rows: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    rounds: int | None = None


def cells(experiment: Experiment, out: Path, choice: CellChoice | None = None) -> list[Cell]:
    """The cells, all rows of the first seed before those of the second.

    With another number of rounds it is another experiment, so it lives in a folder of its own.
    """
    choice = choice or CellChoice()
    if choice.rounds is not None:
        experiment = shorten(experiment, choice.rounds)
    rows = [experiment.row(name) for name in choice.rows] or list(experiment.rows)
    folder = out / experiment.name
    return [
        Cell(experiment, row, seed, folder / row.name / f"seed-{seed}")
        for seed in choice.seeds or experiment.seeds
        for row in rows
        if choice.seeds or not row.seeds or seed in row.seeds
    ]


def shorten(experiment: Experiment, rounds: int) -> Experiment:
    """The same experiment with another number of rounds, and a name that says so."""
    if experiment.shape is Shape.SYNTHETIC:
        raise InputError(f"experiment {experiment.name} has one round: another number asked for: {rounds}")
    lengths = {resolve(row.spec).settings.rounds for row in experiment.rows}
    rows = tuple(replace(row, spec=replace(row.spec, rounds=rounds)) for row in experiment.rows)
    full = "the full length varies" if len(lengths) > 1 else f"the full length is {lengths.pop()}"
    title = f"{experiment.title}, cut to {rounds} rounds ({full})"
    name = f"{experiment.name}-{rounds}-rounds"
    return replace(experiment, name=name, title=title, rows=rows, cut_from=experiment.name)
