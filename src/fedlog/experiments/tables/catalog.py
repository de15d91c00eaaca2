"""Find experiments by name: those of the paper, others, and the grids from which settings were chosen."""

from __future__ import annotations

from pathlib import Path

from fedlog.errors import InputError
from fedlog.experiments.tables.bits import BITS
from fedlog.experiments.tables.cells import Experiment, ExperimentKind, change_rounds
from fedlog.experiments.tables.every_method import EVERY_METHOD
from fedlog.experiments.tables.other_settings import OTHER_SETTINGS
from fedlog.experiments.tables.paper import PAPER
from fedlog.experiments.tables.selection import SELECTION
from fedlog.experiments.tables.tuning_grids import EQUAL_CHANCES, TUNED_TABLES, WEIGHT_DECAY_GRIDS
from fedlog.experiments.tables.when_to_choose import WHEN_TO_CHOOSE
from fedlog.files.names import did_you_mean

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *PAPER,
        *OTHER_SETTINGS,
        *TUNED_TABLES,
        WHEN_TO_CHOOSE,
        *SELECTION,
        *EQUAL_CHANCES,
        *WEIGHT_DECAY_GRIDS,
    )
}
# Measurements with a page of their own: they can be run, and are no part of the reproduction's pages.
WITH_OWN_PAGE: dict[str, Experiment] = {experiment.name: experiment for experiment in (*BITS, *EVERY_METHOD)}

# The paper has one name for what its text and its authors' code run on different data.
GROUPS = {"figure-flexible": ("figure-flexible-cifar100", "figure-flexible-cifar10")}


def find_experiments(name: str) -> tuple[Experiment, ...]:
    """Return the experiment with this name, or all experiments of the group with this name."""
    return tuple(find_experiment(each) for each in GROUPS.get(name, (name,)))


def find_experiment(name: str) -> Experiment:
    """Return the experiment with this name; InputError if there is none."""
    known = {**EXPERIMENTS, **WITH_OWN_PAGE}
    if name not in known:
        hint = did_you_mean(name, EXPERIMENTS, f"one of {', '.join(EXPERIMENTS)}")
        raise InputError(f"unknown experiment: {name}", hint=hint)
    return known[name]


def list_experiments_with_versions(results: Path) -> list[Experiment]:
    """List all experiments, each followed by its versions in the results folder that have another number of rounds."""
    found = []
    for experiment in EXPERIMENTS.values():
        found.append(experiment)
        if experiment.kind is ExperimentKind.SYNTHETIC:  # of one round, always
            continue
        for folder in results.glob(f"{experiment.name}-*-rounds"):
            number = folder.name.removeprefix(f"{experiment.name}-").removesuffix("-rounds")
            if folder.is_dir() and number.isdecimal() and int(number):
                found.append(change_rounds(experiment, int(number)))
    return found
