"""Callbacks: a small class to derive from, whose methods are called as a run goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fedlog.engine.simulate.simulator import RoundRecord, Simulation
from fedlog.experiments.run.records import Summary
from fedlog.settings.resolve import ResolvedRun


@dataclass(frozen=True, eq=False)
class RunStart:
    """A run that is about to start, or to go on where it was interrupted."""

    run: ResolvedRun
    simulation: Simulation
    done: tuple[RoundRecord, ...] = ()  # the rounds before an interruption

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.run.spec.method

    @property
    def data(self) -> str:
        """The name of the data."""
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
    """Is called as a run goes on. Derive from it, override what you need, and give it to `fedlog.run`.

    Methods are called in the process that called `fedlog.run`, in the order of the run. What they raise ends the run;
    one with `out=` can then be resumed.
    """

    def run_began(self, start: RunStart) -> None:
        """Take note of a run that is about to start, or to go on.

        Args:
            start: what is run: `method`, `data`, `rounds`, `clients`, and `done`, the rounds before an interruption.

        """

    def features_computed(self, done: int, records: int) -> None:
        """Take note of how far a frozen encoder is, before the run begins.

        Args:
            done: how many of the records that are new to it the encoder has seen.
            records: how many there are.

        """

    def round_ended(self, record: RoundRecord) -> None:
        """Take note of a round that was trained, judged and recorded.

        Args:
            record: the round's number, accuracies, bits and seconds.

        """

    def run_ended(self, summary: Summary, trained: bool) -> None:
        """Take note of the outcome.

        Args:
            summary: the figures of the whole run.
            trained: False where the folder held the finished run already, and its old result is returned.

        """


class Callbacks(Callback):
    """Several callbacks, called one after the other."""

    def __init__(self, each: Iterable[Callback]) -> None:
        self._each = tuple(each)

    def run_began(self, start: RunStart) -> None:
        """Call every callback."""
        for callback in self._each:
            callback.run_began(start)

    def features_computed(self, done: int, records: int) -> None:
        """Call every callback."""
        for callback in self._each:
            callback.features_computed(done, records)

    def round_ended(self, record: RoundRecord) -> None:
        """Call every callback."""
        for callback in self._each:
            callback.round_ended(record)

    def run_ended(self, summary: Summary, trained: bool) -> None:
        """Call every callback."""
        for callback in self._each:
            callback.run_ended(summary, trained)
