"""Flower's SuperNode, with shorter pauses while a run is under way.

Flower 1.41.0 has two pauses without a setting: a SuperNode that found no work sleeps for 3 s, and one that waits for
its app's answer looks every 0.5 s. In rounds of a second both are most of the time. Here the first pause is short after
the last message and grows while none comes, up to Flower's own: a wait is then longer by a third of itself at most, and
the calls of a round are few. The second is a look into the memory of this very process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedlog.errors import RunError
from fedlog.flower.site.guard import FLOWER_VERSION

FLOWER_IDLE_SECONDS, FLOWER_ANSWER_SECONDS = 3.0, 0.5
FIRST_PAUSE_SECONDS = 0.1
GROWTH = 1.35
ANSWER_SECONDS = 0.05


@dataclass
class Pauses:
    """Stands for the module `time` where Flower's SuperNode sleeps."""

    sleep_seconds: Callable[[float], None] = time.sleep
    pause: float = FIRST_PAUSE_SECONDS

    def sleep(self, seconds: float) -> None:
        """Sleep as long as this kind of pause is to be."""
        if seconds == FLOWER_IDLE_SECONDS:
            self.sleep_seconds(self.pause)
            self.pause = min(FLOWER_IDLE_SECONDS, GROWTH * self.pause)
        elif seconds == FLOWER_ANSWER_SECONDS:
            self.pause = FIRST_PAUSE_SECONDS  # a message is being worked on; the next one comes when all have answered
            self.sleep_seconds(ANSWER_SECONDS)
        else:
            self.sleep_seconds(seconds)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the module offers."""
        return getattr(time, name)


def main() -> None:
    """Run `flower-supernode` as Flower has it, except for its pauses."""
    import flwr
    from flwr.supernode import start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    if flwr.__version__ != FLOWER_VERSION:
        raise RunError(f"expected flwr {FLOWER_VERSION} at this site, found: {flwr.__version__}")
    if getattr(start_client_internal, "time", None) is not time:
        raise RunError("expected the module time in flwr.supernode.start_client_internal, found none")
    start_client_internal.time = Pauses()
    flower_supernode()


if __name__ == "__main__":
    main()
