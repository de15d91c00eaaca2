"""Where a process's time goes: seconds by part of a round, noted wherever a part is computed.

A part inside another counts for the outer one: the forward passes of an evaluation are evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

PARTS = ("gather", "forward", "backward", "optimiser", "statistics", "head", "encode", "evaluate", "wait")
OTHER = "other"
Item = TypeVar("Item")


class Stopwatch:
    """Seconds by part since they were last taken."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._runs = False

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the time inside to this part, unless another part is being timed."""
        if self._runs:
            yield
            return
        self._runs, start = True, time.perf_counter()
        try:
            yield
        finally:
            self._runs = False
            self._seconds[part] += time.perf_counter() - start

    def along(self, part: str, items: Iterable[Item]) -> Iterator[Item]:
        """The items; the time that it takes to make each is added to this part."""
        iterator = iter(items)
        while True:
            with self.time(part):
                item = next(iterator, None)
            if item is None:
                return
            yield item

    def take(self) -> dict[str, float]:
        """The seconds of every part; counting starts anew."""
        taken, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return taken


CLOCK = Stopwatch()  # of this process


def combine(total: float, server: Mapping[str, float], workers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """A round's `total` seconds by part: the server's plus the mean of the workers', and the rest as `other`."""
    mean = {part: sum(times[part] for times in workers) / len(workers) if workers else 0.0 for part in PARTS}
    parts = {part: server[part] + mean[part] for part in PARTS}
    # While the server works its workers wait: that time is counted once, as the server's.
    parts["wait"] = max(0.0, parts["wait"] - sum(server.values())) if workers else 0.0
    return {**parts, OTHER: max(0.0, total - sum(parts.values()))}
