"""How long the server waits for the sites of a round: as the operator said, or as the rounds so far suggest.

A site that works and is slow must be told from one that is gone. Without a deadline of the operator's, a question stays
open for longer than it is waited for, so that a slow site shows by a late answer how long it takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

# Before anything is known of a run: training may take minutes.
FIRST_SECONDS = 600.0
SHORTEST_SECONDS = 60.0
# What the slowest answer of the last rounds took, times this: a site that is a few times slower for once is awaited.
TIMES_THE_SLOWEST = 4.0
REMEMBERED_ROUNDS = 5
LATE_ANSWER_TIMES = 6.0
# A site that is not awaited finds this many questions, of about a round each, when it comes back.
OPEN_ROUNDS = 2.0
SHORTEST_OPEN_SECONDS = 10.0


@dataclass
class Deadline:
    """The deadline of the next question; `fixed` is the operator's, else it follows the slowest answers."""

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
        """How long to wait for sites to connect where there are too few of them."""
        return FIRST_SECONDS if self.fixed is None else self.fixed

    def lifetime(self, awaited: bool) -> float:
        """How long a site can still answer a question."""
        if self.fixed is not None:
            return self.fixed
        if awaited:
            return LATE_ANSWER_TIMES * self.seconds
        # Short, so that a site which comes back is not busy with the questions of many rounds.
        usual = max(self.slowest, default=FIRST_SECONDS)
        return min(self.seconds, max(SHORTEST_OPEN_SECONDS, OPEN_ROUNDS * usual))

    def learn(self, seconds: Iterable[float]) -> None:
        """Take in how long the answers of a round, or late ones, took."""
        if taken := list(seconds):
            self.slowest.append(max(taken))

    def learn_rounds(self, slowest: Iterable[float | None]) -> None:
        """Take in what the lines of earlier rounds say: the slowest answer of each."""
        for seconds in slowest:
            self.learn([] if seconds is None else [seconds])
