"""Run a method on bodies that are never trained: random ones, or ones trained without the private data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from fedlog.algorithms.registry import find_methods
from fedlog.algorithms.shape import Algorithm, Schedule
from fedlog.errors import InputError


def freeze_bodies(algorithm: Algorithm) -> Algorithm:
    """The method without its training phases; InputError if it sends no statistics."""
    if not algorithm.sends_statistics:
        able = ", ".join(find_methods(lambda method: method.sends_statistics))
        raise InputError(
            f"method {algorithm.name} cannot be used with frozen bodies: it sends no statistics",
            hint=f"use one of: {able}",
        )
    return cast(Algorithm, _FrozenBodies(algorithm))


class _FrozenBodies:
    """A method without its training phases; everything else is passed on to the method."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._algorithm, name)

    @property
    def schedule(self) -> Schedule:
        """The method's exchanges without training phases."""
        schedule = self._algorithm.schedule
        return replace(schedule, round=tuple(replace(exchange, phases=()) for exchange in schedule.round))
