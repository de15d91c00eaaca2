"""How long the server waits for the sites of a round: as long as the operator set, or as the last rounds suggest.

A slow site must be distinguished from one that is gone. If the operator set no deadline, a site can still answer after
the server has stopped waiting, so that the server learns from the late answer how long the site takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

# Used before the first round: training may take minutes.
FIRST_SECONDS = 600.0
SHORTEST_SECONDS = 60.0
# The deadline is this many times the slowest answer of the last rounds, so that a site may be slower once.
TIMES_THE_SLOWEST = 4.0
REMEMBERED_ROUNDS = 5
LATE_ANSWER_TIMES = 6.0  # a late answer is accepted for this many times the deadline
# A site that is not waited for finds the requests of this many rounds when it comes back.
OPEN_ROUNDS = 2.0
SHORTEST_OPEN_SECONDS = 10.0


@dataclass
class Deadline:
    """The deadline of the next request: `fixed` if the operator set one, else computed from the slowest answers."""

    fixed: float | None = None
    slowest: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_ROUNDS))  # seconds, round by round

    @property
    def seconds(self) -> float:
        """How long to wait for answers."""
        if self.fixed is not None:
            return self.fixed
        if not self.slowest:
            return FIRST_SECONDS
        return max(SHORTEST_SECONDS, TIMES_THE_SLOWEST * max(self.slowest))

    @property
    def gathering_seconds(self) -> float:
        """How long to wait for sites to connect if there are too few of them."""
        return FIRST_SECONDS if self.fixed is None else self.fixed

    def request_lifetime(self, awaited: bool) -> float:
        """How long a site can answer a request; `awaited`: whether the server waits for this site."""
        if self.fixed is not None:
            return self.fixed
        if awaited:
            return LATE_ANSWER_TIMES * self.seconds
        # Short, so that a site which comes back need not answer the requests of many rounds.
        usual = max(self.slowest, default=FIRST_SECONDS)
        return min(self.seconds, max(SHORTEST_OPEN_SECONDS, OPEN_ROUNDS * usual))

    def learn_from_answers(self, seconds: Iterable[float]) -> None:
        """Store the longest of these times, from which the next deadlines are computed."""
        if taken := list(seconds):
            self.slowest.append(max(taken))
