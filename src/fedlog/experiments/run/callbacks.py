"""Derive from `Callback` to be called when a run begins, after each round and at its end."""

from __future__ import annotations

from dataclasses import dataclass

from fedlog.engine.simulate.simulator import RoundRecord, Simulation
from fedlog.experiments.run.records import Summary
from fedlog.settings.resolve import ResolvedRun


@dataclass(frozen=True, eq=False)
class RunStart:
    """A run that is about to start, or to continue after an interruption."""

    run: ResolvedRun
    simulation: Simulation
    done: tuple[RoundRecord, ...] = ()  # the rounds before an interruption

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.run.spec.method

    @property
    def data(self) -> str:
        """The name of the data set or federation."""
        return self.run.spec.data

    @property
    def rounds(self) -> int:
        """How many rounds the run has."""
        return self.run.settings.rounds

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients."""
        return self.simulation.federation.clients


class Callback:
    """The base class of callbacks. Derive from it, override what you need, and pass an instance to `fedlog.run`.

    Its methods are called in the process that called `fedlog.run`, in the order of the run. An exception in one of them
    ends the run; a run with `out=` can then be resumed.
    """

    def run_began(self, start: RunStart) -> None:
        """Called before the first round, or before the next one of a resumed run.

        Args:
            start: the run: its `method`, `data`, `rounds`, `clients`, and `done`, the rounds before an interruption.

        """

    def features_computed(self, done: int, records: int) -> None:
        """Called again and again while a frozen encoder computes features, before the run begins.

        Args:
            done: how many new records the encoder has finished.
            records: how many new records there are in all.

        """

    def round_ended(self, record: RoundRecord) -> None:
        """Called after a round was trained, evaluated and recorded.

        Args:
            record: the round's number, accuracies, bits and seconds.

        """

    def run_ended(self, summary: Summary, trained: bool) -> None:
        """Called once at the end.

        Args:
            summary: the results of the whole run.
            trained: False if the folder already held the finished run and its old result is returned.

        """
