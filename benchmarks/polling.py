"""Measure what the pauses of a SuperNode add to a round: Flower's loop with a clock that only sleeping moves.

    python -m benchmarks.polling --out results/federation/polling.json

Each site runs the loop of `flwr.supernode.start_client_internal` with a server and an app of its own that take no time:
a question is there when every site has answered the one before and the server has looked, and an answer is ready so
many seconds after its question was found. What a round takes beyond that work and the server's looks is what the pauses
cost. No process is started and nothing waits, so the load of the machine does not matter.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

from flwr.supernode import start_client_internal as flower

from fedlog.flower.server.site_requests import POLL_SECONDS
from fedlog.flower.site.supernode import ShorterPauses


@dataclass
class LoopSite:
    """One site in Flower's loop: when it finds the question of a round, and when it has sent its answer."""

    work: float
    asked_at: float = 0.0  # when the question of the round is there
    now: float = 0.0
    ready_at: float = 0.0
    calls: int = 0
    pauses: Any = None

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def look_at_clock(self) -> float:
        """Return the seconds since the beginning."""
        return self.now

    def answer(self, asked_at: float) -> float:
        """Go through Flower's loop until the answer to this question is sent, and return when that was."""
        self.asked_at = asked_at
        while not self._pull():
            self.pauses.sleep(3)
        self.ready_at = self.now + self.work
        with self.pauses.record_wait():
            flower._push_messages(state=self, object_store=None, send=None, push_object=None)  # type: ignore[arg-type]
        return self.now

    def _pull(self) -> bool:
        self.calls += 1
        return self.now >= self.asked_at

    def get_messages_legacy(self, is_reply: bool) -> Any:
        """As Flower's state of a node has it: true once the answer is ready. Iterating over it ends at once."""
        return _Ready() if is_reply and self.now >= self.ready_at else ()


class _Ready(tuple):  # type: ignore[type-arg]
    """An empty list of messages that is true, so that Flower's loop ends and sends nothing."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


def measure(sites: int, work: float, rounds: int, ours: bool, seed: int) -> dict[str, Any]:
    """The mean seconds that a round takes beyond its work, and the calls for work."""
    generator = random.Random(seed)
    loops = [LoopSite(work * generator.uniform(0.9, 1.1)) for _ in range(sites)]
    for loop in loops:
        loop.now = generator.uniform(0.0, 3.0)  # they were started at different moments
        loop.pauses = (
            ShorterPauses(loop.sleep, loop.look_at_clock)
            if ours
            else SimpleNamespace(sleep=loop.sleep, record_wait=nullcontext)
        )
    clock, extra, before = 3.0, [], flower.time
    try:
        for _ in range(rounds):
            ends = []
            for loop in loops:
                flower.time = loop.pauses
                ends.append(loop.answer(clock))
            # The server looks every fifth of a second.
            looks = int((max(ends) - clock) / POLL_SECONDS) + 1
            after = clock + looks * POLL_SECONDS
            extra.append(after - clock - max(loop.work for loop in loops))
            clock = after
    finally:
        flower.time = before
    return {
        "sites": sites,
        "work_seconds": work,
        "pauses": "fedlog" if ours else "flower",
        "extra_seconds_a_round": round(mean(extra), 2),
        "calls_a_site_and_round": round(mean(loop.calls for loop in loops) / rounds, 1),
    }


def main() -> None:
    """Measure both kinds of pauses and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=500)
    args = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    found = [
        measure(sites, work, args.rounds, ours, seed=sites)
        for work in (0.5, 2.0, 20.0)
        for sites in (3, 8, 20)
        for ours in (False, True)
    ]
    command = f"python -m benchmarks.polling {' '.join(sys.argv[1:])}"
    args.out.write_text(json.dumps({"command": command, "commit": commit, "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
