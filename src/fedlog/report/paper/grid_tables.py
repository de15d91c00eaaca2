"""Make tables of the hyperparameter grids from which settings were chosen, and of the synthetic experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedlog.experiments.tables.finished_cells import FinishedRuns
from fedlog.experiments.tables.significance import Mean, compute_mean_difference
from fedlog.experiments.tables.synthetic import IterationRecord
from fedlog.report.parts.tables import (
    NOT_RUN,
    TextTable,
    format_difference,
    format_mean,
    format_mean_of_values,
    list_notes_on_missing_rows,
)
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec

SHOWN_ITERATIONS = (1, 2, 5, 10, 15, 20, 25, 30)


def make_grid_table(finished: FinishedRuns) -> TextTable:
    """Make a table of the validation accuracy of each row of a grid; each method's best and default rows are marked."""
    finals = {row.name: finished.find_final_accuracies(row.name) for row in finished.experiment.rows}
    means = {name: Mean.from_values(list(by_seed.values())) for name, by_seed in finals.items() if by_seed}
    highest: dict[str, float] = {}
    for row in finished.experiment.rows:
        if row.name in means:
            highest[row.spec.method] = max(highest.get(row.spec.method, 0.0), means[row.name].value)
    rows = []
    for row in finished.experiment.rows:
        if row.name not in means:
            continue
        mean = means[row.name]
        marks = ["highest"] if mean.value == highest[row.spec.method] else []
        marks += ["in the tables"] if _are_default_settings(row.spec) else []
        rows.append(
            {
                "setting": row.label,
                "what was set": describe_changed_settings(row.spec),
                "seeds": str(mean.seeds),
                "validation accuracy, final round, %": format_mean(mean),
                "": ", ".join(marks),
            }
        )
    notes = (*finished.experiment.remarks, *list_notes_on_missing_rows(finished))
    return TextTable.from_rows(rows, "Validation accuracy, mean over clients", notes)


def describe_changed_settings(spec: RunSpec) -> str:
    """Describe the options of the method, and the settings that differ from their defaults, as text."""
    parts = [
        f"{name} {value:g}" if isinstance(value, int | float) else f"{name} {str(value).lower()}"
        for name, value in spec.options.items()
    ]
    if spec.moments is not RunSpec.moments:
        parts.append(f"moments for the {spec.moments}")
    if spec.decay is not RunSpec.decay:
        parts.append(f"{spec.decay} decay")
    if spec.weight_decay:
        parts.append(f"weight decay {spec.weight_decay:g}")
    if spec.body:
        parts.append(f"body {', '.join(spec.body)}")
    if spec.initialisation != RunSpec.initialisation:
        parts.append(f"{spec.initialisation} starts")
    return ", ".join(parts)


def _are_default_settings(spec: RunSpec) -> bool:
    """Return whether these are the default settings of the method on the data set."""
    plain = replace(
        spec,
        options={},
        moments=RunSpec.moments,
        decay=RunSpec.decay,
        weight_decay=RunSpec.weight_decay,
        body=(),
        initialisation=RunSpec.initialisation,
    )
    return resolve(spec) == resolve(plain)


def make_synthetic_table(finished: FinishedRuns) -> TextTable:
    """Make a table with a row for each number of local iterations: accuracies of two methods, and differences."""
    first, second = (row.name for row in finished.experiment.rows)
    labels = [row.label for row in finished.experiment.rows]
    columns = (
        "local iterations",
        *(f"{label}, {part}, %" for part in ("training", "test") for label in labels),
        "difference, training, points",
        "difference, test, points",
    )
    sweeps = finished.sweeps
    if not sweeps[first] and not sweeps[second]:
        return TextTable(columns, ((NOT_RUN, *[""] * (len(columns) - 1)),))
    rows = tuple(_make_iteration_row(at, sweeps[first], sweeps[second]) for at in SHOWN_ITERATIONS)
    return TextTable(
        columns, rows, f"Accuracy, mean over clients and {_describe_seeds(finished)}", finished.experiment.remarks
    )


def _describe_seeds(finished: FinishedRuns) -> str:
    """Return the number of seeds as text or, if the rows' numbers of seeds differ, the number for each row."""
    first, second = (finished.sweeps[row.name].keys() for row in finished.experiment.rows)
    if first == second:
        return f"{len(first)} seeds"
    by_row = ", ".join(f"{row.label}: {len(finished.sweeps[row.name])}" for row in finished.experiment.rows)
    return f"seeds ({by_row}; both: {len(first & second)})"


# Seed -> the records of a run, one for each number of local iterations: 1, 2, ...
RecordsBySeed = Mapping[int, Sequence[IterationRecord]]


def _make_iteration_row(iterations: int, first: RecordsBySeed, second: RecordsBySeed) -> tuple[str, ...]:
    """Make the table row for this number of local iterations: the accuracies of two methods, then their differences."""

    def read_accuracies(by_seed: RecordsBySeed, part: str) -> dict[int, float]:
        return {seed: 100 * float(getattr(records[iterations - 1], part)) for seed, records in by_seed.items()}

    cells, differences = [], []
    for part in ("train_accuracy", "test_accuracy"):
        one, other = read_accuracies(first, part), read_accuracies(second, part)
        cells += [format_mean_of_values(each.values(), 1) or NOT_RUN for each in (one, other)]
        differences.append(format_difference(compute_mean_difference(one, other), 1) or "no seed in common")
    return (str(iterations), *cells, *differences)


def make_synthetic_grid_table(finished: FinishedRuns) -> TextTable:
    """Make a table of the grid for the synthetic experiment: each row's training accuracy after the last iteration."""
    rows = tuple(
        (
            row.label,
            str(len(finished.sweeps[row.name])),
            format_mean_of_values(100 * sweep[-1].train_accuracy for sweep in finished.sweeps[row.name].values())
            or NOT_RUN,
        )
        for row in finished.experiment.rows
    )
    columns = ("setting", "seeds", "training accuracy, %")
    return TextTable(columns, rows, "", finished.experiment.remarks)
