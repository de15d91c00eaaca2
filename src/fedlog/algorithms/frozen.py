"""FedLog on bodies that are never trained: random ones, or such as were made without the private data."""

from __future__ import annotations

from dataclasses import fields, replace

from fedlog.algorithms.fedlog import FedLog, FedLogC
from fedlog.algorithms.shape import Schedule


def frozen(algorithm: FedLog) -> FedLog:
    """The same method, told the same, with nothing trained."""
    kind = _FrozenFedLogC if isinstance(algorithm, FedLogC) else _FrozenFedLog
    return kind(**{option.name: getattr(algorithm, option.name) for option in fields(algorithm)})


def _without_training(schedule: Schedule) -> Schedule:
    return replace(schedule, round=tuple(replace(exchange, phases=()) for exchange in schedule.round))


class _FrozenFedLog(FedLog):
    @property
    def schedule(self) -> Schedule:
        """FedLog's, with nothing trained."""
        return _without_training(super().schedule)


class _FrozenFedLogC(FedLogC):
    @property
    def schedule(self) -> Schedule:
        """FedLog-C's, with nothing trained."""
        return _without_training(super().schedule)
