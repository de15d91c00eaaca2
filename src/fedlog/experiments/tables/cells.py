"""An experiment has rows (a method and its settings) and seeds. A row with a seed is a cell: one run on disk."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from functools import cached_property
from pathlib import Path

from fedlog.errors import InputError
from fedlog.experiments.run import records
from fedlog.experiments.run.execute import CONFIG, RECORDS, SUMMARY, read_spec, read_summary_if_finished
from fedlog.files.names import did_you_mean
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec


class Arrow(StrEnum):
    """The paper's arrows: significantly higher or lower than the reference at p < 0.01; small arrows at p < 0.05."""

    UP = "⇑"
    DOWN = "⇓"
    SMALL_DOWN = "↓"
    NONE = ""


@dataclass(frozen=True)
class PrintedResults:
    """The results that the paper prints for one row: accuracy in per cent, and bits until the threshold is reached."""

    accuracy: float
    accuracy_error: float
    accuracy_arrow: Arrow = Arrow.NONE
    cost: float | None = None
    cost_error: float = 0.0
    cost_text: str = ""  # digits and unit as printed, with the standard error
    cost_arrow: Arrow = Arrow.NONE


class PrintedCostDirections(Enum):
    """Whether the bits that the paper prints count one direction or both; this is inferred from the printed digits."""

    ONE_WAY = "The printed costs of this table fit messages counted in one direction; ours are shown both ways."
    BOTH_WAYS = "The printed costs of this table fit messages counted in both directions."


@dataclass(frozen=True)
class TableRow:
    """One row of a table: its name (which also names its folder), its label, and a run specification without a seed."""

    name: str
    label: str
    spec: RunSpec
    printed: PrintedResults | None = None
    seeds: tuple[int, ...] = ()  # only if it has fewer seeds than the experiment


PLACE_IN_PAPER = re.compile(r"^(Table|Figure) \d+( \(\w+\))?, ")


class ExperimentKind(Enum):
    """The kind of an experiment; it decides which tables and figures its page shows."""

    TABLE = "methods compared at the final round, with bits to a threshold"
    CURVES = "methods compared over the rounds"
    GRID = "settings compared on validation records"
    SYNTHETIC = "one round, by the number of local iterations"
    PRIVACY = "accuracy by privacy budget"
    CONDITIONS = "methods against training alone, in several conditions"
    TUNED = "methods at their selected settings, beside the paper's settings"


@dataclass(frozen=True)
class Experiment:
    """The runs for a table or figure: rows, seeds, and the row that the others are compared with (`reference`).

    Costs are the bits sent until the accuracy reaches `threshold` per cent. `cut_from` names the full experiment if
    this is a version with another number of rounds.
    """

    name: str
    title: str
    kind: ExperimentKind
    rows: tuple[TableRow, ...]
    seeds: tuple[int, ...]
    threshold: int | None = None
    printed_costs: PrintedCostDirections = PrintedCostDirections.BOTH_WAYS
    reference: str | None = None
    remarks: tuple[str, ...] = field(default=())
    cut_from: str | None = None

    @property
    def short_title(self) -> str:
        """The title without the reference to the paper that it may begin with, such as `Table 1, `."""
        return PLACE_IN_PAPER.sub("", self.title)

    @property
    def command(self) -> str:
        """The command that runs the experiment."""
        if self.cut_from is None:
            return f"fedlog reproduce {self.name}"
        return f"fedlog reproduce {self.cut_from} --rounds {self.rows[0].spec.rounds}"

    def find_row(self, name: str) -> TableRow:
        """Return the row with this name; InputError if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        hint = did_you_mean(name, names, f"it has {', '.join(names)}")
        raise InputError(f"experiment {self.name} has no row: {name}", hint=hint)

    @property
    def data(self) -> tuple[str, ...]:
        """The names of the data sets that the experiment needs."""
        return tuple(dict.fromkeys(row.spec.data for row in self.rows))

    @property
    def judged_on(self) -> str:
        """The held-out records that accuracies are measured on: `test` or `validation`."""
        return self.rows[0].spec.judge.kinds[0].value


class CellState(Enum):
    """The state of a cell's run on disk: finished, begun, absent, or made with other settings."""

    DONE = "done"
    BEGUN = "begun"
    OTHER = "made with other settings"
    ABSENT = "not run"


@dataclass(frozen=True)
class Cell:
    """One run of an experiment: a row, a seed, and the folder of the run."""

    experiment: Experiment
    row: TableRow
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """The cell's name to show, such as `fedlog seed 0`."""
        return f"{self.row.name} seed {self.seed}"

    @cached_property
    def spec(self) -> RunSpec:
        """The resolved specification of the cell's run; it is cached, because progress bars need it every second."""
        return resolve(replace(self.row.spec, seed=self.seed, jobs=1)).spec

    @property
    def record_count(self) -> int:
        """How many lines `records_file` has when the cell is finished: one for each round.

        In the synthetic experiment there is one for each number of local iterations.
        """
        if self.experiment.kind is ExperimentKind.SYNTHETIC:
            return int(self.spec.options["epochs"])
        return self.spec.rounds or 0

    @property
    def records_file(self) -> Path:
        """The path of the file with the records of the cell's rounds."""
        return self.folder / RECORDS

    def read_state(self) -> CellState:
        """Read the state of the cell from its folder; OTHER if the folder holds a run with other settings."""
        if not (self.folder / CONFIG).exists():
            return CellState.ABSENT
        if not _has_settings(self.folder, self.spec):
            return CellState.OTHER
        return CellState.DONE if self._is_complete() else CellState.BEGUN

    def _is_complete(self) -> bool:
        """Return whether the run has ended and its records have as many rounds as its summary says."""
        if self.experiment.kind is ExperimentKind.SYNTHETIC:
            return (self.folder / SUMMARY).exists() and records.count_rounds(self.records_file) == self.record_count
        try:
            return read_summary_if_finished(self.folder) is not None
        except InputError:
            return False


def _has_settings(folder: Path, spec: RunSpec) -> bool:
    """Return whether the run in the folder has these settings; False if its settings cannot be read."""
    try:
        found = read_spec(folder)
        if found == spec:
            return True
        # Resolved again, so that an option added to the method since then has its default. The digest of a LEAF folder
        # is ignored here, because reports are made without data; it is compared when a cell runs.
        return resolve(replace(found, data_sha256=None)).digest == spec.digest
    except InputError:
        return False


def list_cells(
    experiment: Experiment, out: Path, rows: Sequence[str] = (), seeds: Sequence[int] = (), rounds: int | None = None
) -> list[Cell]:
    """List the cells (runs) of an experiment, or only those of these rows and seeds; sorted by seed.

    With `rounds`, they belong to a version of the experiment with this number of rounds, in a separate folder.
    """
    if rounds is not None:
        experiment = change_rounds(experiment, rounds)
    wanted = [experiment.find_row(name) for name in rows] or list(experiment.rows)
    folder = out / experiment.name
    return [
        Cell(experiment, row, seed, folder / row.name / f"seed-{seed}")
        for seed in seeds or experiment.seeds
        for row in wanted
        if seeds or not row.seeds or seed in row.seeds
    ]


def change_rounds(experiment: Experiment, rounds: int) -> Experiment:
    """Return a copy of the experiment with another number of rounds, which becomes part of its name."""
    if experiment.kind is ExperimentKind.SYNTHETIC:
        raise InputError(
            f"experiment {experiment.name} always has 1 round, found: --rounds {rounds}", hint="leave out --rounds"
        )
    lengths = {resolve(row.spec).settings.rounds for row in experiment.rows}
    rows = tuple(replace(row, spec=replace(row.spec, rounds=rounds)) for row in experiment.rows)
    full = "the full length varies" if len(lengths) > 1 else f"the full length is {lengths.pop()}"
    title = f"{experiment.title}, cut to {rounds} rounds ({full})"
    name = f"{experiment.name}-{rounds}-rounds"
    return replace(experiment, name=name, title=title, rows=rows, cut_from=experiment.name)
