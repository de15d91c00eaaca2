"""Read, from the folder of a run, everything that the run's page shows; the run may still be running."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run import records
from fedlog.experiments.run.baselines import find_baselines
from fedlog.experiments.run.client_files import (
    ClassMeansPlane,
    ClientDescription,
    read_client_descriptions,
    read_geometry,
)
from fedlog.experiments.run.execute import CONFIG, RECORDS, read_spec, read_summary_if_finished
from fedlog.experiments.run.probability_calibration import RunCalibration
from fedlog.experiments.run.records import Summary
from fedlog.experiments.run.scores import RunScores
from fedlog.settings.spec import RunSpec

MOST_CLASSES = 12  # a client with more classes shows only their number


@dataclass(frozen=True)
class ClientFacts:
    """One client: its accuracy in the last round and, if known, by training alone, and a description of its records."""

    name: str
    accuracy: float | None = None
    alone: float | None = None  # its accuracy by training alone
    test_records: int | None = None
    description: ClientDescription | None = None
    calibration_error: float | None = None

    @property
    def gain(self) -> float | None:
        """The client's gain in accuracy over training alone, from -1 to 1; None if one of the accuracies is unknown."""
        return None if self.accuracy is None or self.alone is None else self.accuracy - self.alone

    @property
    def classes(self) -> str:
        """The client's classes as text, each with its number of training records.

        With more than MOST_CLASSES classes: how many there are, and the smallest and largest number of records.
        """
        training = {} if self.description is None else self.description.training
        if len(training) > MOST_CLASSES:
            return f"{len(training)} classes, {min(training.values())} to {max(training.values())} each"
        return ", ".join(f"{name} ({count})" for name, count in training.items())


@dataclass(frozen=True, eq=False)
class RunFacts:
    """Everything that is known about a run from the files in its folder."""

    folder: Path
    spec: RunSpec
    rounds: tuple[RoundRecord, ...]
    summary: Summary | None  # None if the run is still running or was interrupted
    baselines: Mapping[str, Summary]  # finished runs of other methods beside this run, by method
    descriptions: Mapping[str, ClientDescription]
    geometry: ClassMeansPlane | None
    scores: RunScores | None
    calibration: RunCalibration | None
    made_with: Mapping[str, Any]  # the versions of fedlog, Python and others, by name

    @property
    def bits_opening(self) -> int:
        """The bits sent before round 1; during a run they are not yet recorded, and this is 0."""
        return 0 if self.summary is None else sum(self.summary.bits_opening.values())

    @property
    def bits(self) -> int:
        """The bits sent so far, up and down, by all clients together."""
        if self.summary is not None:
            return self.summary.bits_up + self.summary.bits_down
        return sum(line.bits_up + line.bits_down for line in self.rounds)

    @property
    def accuracy(self) -> float | None:
        """The mean accuracy over clients in the last round; None before the first round ends."""
        return self.rounds[-1].accuracy_mean_over_clients if self.rounds else None

    @property
    def measure(self) -> str:
        """The name of the measure on the page, such as `test accuracy`; for numbers, `share inside 90 % intervals`."""
        predicts_number = bool(self.rounds) and bool(self.rounds[-1].rmse_per_client)
        return "share inside 90 % intervals" if predicts_number else f"{self.spec.judge.kinds[0].value} accuracy"

    @property
    def mean_rmse(self) -> float | None:
        """The root mean squared error of predicted numbers, mean over clients; None if the run predicts classes."""
        found = [error for error in (self.rounds[-1].rmse_per_client if self.rounds else []) if error is not None]
        return sum(found) / len(found) if found else None

    @property
    def bits_by_kind(self) -> dict[tuple[str, str], int]:
        """The bits of the run by (direction, kind of message)."""
        opening = {} if self.summary is None else self.summary.bits_opening
        return sum_bits_by_kind((line.bits_by_kind for line in self.rounds), opening)

    @cached_property
    def clients(self) -> list[ClientFacts]:
        """Every client, sorted by accuracy, the lowest first; clients without an accuracy are last."""
        if not self.rounds:
            return []
        last = self.rounds[-1]
        names = self._list_client_names(len(last.records_per_client))
        alone = self._read_accuracies_of_training_alone(names)
        errors = {} if self.scores is None else self.scores.test
        found = [
            ClientFacts(
                name,
                share,
                alone.get(name),
                rows,
                self.descriptions.get(name),
                errors[name].calibration_error if name in errors else None,
            )
            for name, share, rows in zip(names, last.accuracy_per_client, last.records_per_client, strict=True)
        ]
        return sorted(found, key=lambda each: (each.accuracy is None, each.accuracy or 0.0))

    def _list_client_names(self, count: int) -> list[str]:
        """List the recorded names of the clients, or `client-0`, `client-1`, ... if fewer than `count` are recorded."""
        known = (self.summary.clients if self.summary is not None else []) or list(self.descriptions)
        return list(known) if len(known) == count else [f"client-{at}" for at in range(count)]

    def _read_accuracies_of_training_alone(self, names: list[str]) -> dict[str, float]:
        """Read each client's accuracy by training alone, from a run beside this run; empty if there is no such run."""
        if "local" not in self.baselines:
            return {}
        summary = self.baselines["local"]
        theirs = summary.clients or names
        pairs = zip(theirs, summary.accuracy_per_client, strict=False)
        return {name: share for name, share in pairs if share is not None}

    @property
    def lowest_clients(self) -> list[ClientFacts]:
        """The tenth of the clients that has the lowest accuracies; at least one client."""
        return find_least_accurate_tenth(self.clients)


def sum_bits_by_kind(rounds: Iterable[Mapping[str, int]], opening: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """Sum bits over all rounds, and return them by (direction, kind of message).

    The keys of `rounds` and `opening` are "KIND DIRECTION". `opening` has the bits sent before round 1; their kinds get
    the suffix "before round 1".
    """
    found: dict[tuple[str, str], int] = {}
    for counts, suffix in (*((counts, "") for counts in rounds), (opening, " before round 1")):
        for name, bits in counts.items():
            kind, _, way = name.rpartition(" ")
            found[way, kind + suffix] = found.get((way, kind + suffix), 0) + bits
    return found


def find_least_accurate_tenth(clients: Sequence[ClientFacts]) -> list[ClientFacts]:
    """Return the tenth of the clients with the lowest accuracies, at least one client.

    `clients` must be sorted by accuracy, the lowest first.
    """
    judged = [client for client in clients if client.accuracy is not None]
    return judged[: max(1, len(judged) // 10)]


def read_run(folder: Path) -> RunFacts:
    """Read everything about the run in the folder; InputError if it holds no run."""
    spec = read_spec(folder)
    config = json.loads((folder / CONFIG).read_text())
    return RunFacts(
        folder=folder,
        spec=spec,
        rounds=tuple(records.read_rounds(folder / RECORDS)),
        summary=read_summary_if_finished(folder),
        baselines=find_baselines(folder, spec),
        descriptions=read_client_descriptions(folder),
        geometry=read_geometry(folder),
        scores=RunScores.read(folder),
        calibration=RunCalibration.read(folder),
        made_with=config.get("made_with", {}),
    )
