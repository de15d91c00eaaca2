"""Flower's SuperNode, with this site's own guard, shorter pauses while a run is under way, and heartbeats to spare.

Flower 1.41.0 has two pauses without a setting: a SuperNode that found no work sleeps for 3 s, and one that waits for
its app's answer looks every 0.5 s. In rounds of a second both are most of the time. Here the first pause is short after
the last message and grows while none comes, up to Flower's own: a wait is then longer by a third of itself at most, and
the calls of a round are few. The second is a look into the memory of this very process.

A SuperNode starts the program that runs its tasks by its bare name, which the system looks for on the PATH: where the
site's folder may hold no programs (a disk mounted `noexec`), or has the separator of the PATH in its name, that would
be Flower's own one, which runs the server's code. So the guard is started here as a module of this interpreter.

Flower sends a heartbeat every 20 s, waits 5 s for its answer, and takes a site for gone after 60 s without one: on a
machine with many sites and other work, two late answers are enough. Here they go out more than twice as often, and
their answers have more time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedlog.errors import RunError
from fedlog.flower.site.guard import FLOWER_VERSION, GUARDED

FLOWER_IDLE_SECONDS, FLOWER_ANSWER_SECONDS = 3.0, 0.5
FIRST_PAUSE_SECONDS = 0.1
GROWTH = 1.35
ANSWER_SECONDS = 0.05
GUARD = "fedlog.flower.site.guard"
FLOWER_HEARTBEAT_SECONDS, FLOWER_HEARTBEAT_PATIENCE = 30, 5
# Flower takes the patience off and 0.7 to 0.9 of the rest: every 7 to 9 s.
HEARTBEAT_SECONDS, HEARTBEAT_PATIENCE = 15, 20


@dataclass
class Pauses:
    """Stands for the module `time` where Flower's SuperNode sleeps."""

    sleep_seconds: Callable[[float], None] = time.sleep
    pause: float = FIRST_PAUSE_SECONDS

    def sleep(self, seconds: float) -> None:
        """Sleep, for less than Flower asks for while it waits for work or for an answer."""
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


class Programs:
    """Stands for the module `subprocess` where Flower's SuperNode starts the program that runs its tasks."""

    def Popen(self, command: Sequence[str]) -> subprocess.Popen[bytes]:  # noqa: N802
        """Start this site's guard in its place; refuse any other program."""
        if not command or command[0] != GUARDED:
            raise RunError(f"expected {GUARDED} from Flower's SuperNode, found another program: {command[:1]}")
        return subprocess.Popen([sys.executable, "-m", GUARD, *command[1:]])


def main() -> None:
    """Run `flower-supernode` as Flower has it, except for what is replaced here."""
    import flwr
    from flwr.supernode.cli.flower_supernode import flower_supernode

    if flwr.__version__ != FLOWER_VERSION:
        raise RunError(f"expected flwr {FLOWER_VERSION} at this site, found: {flwr.__version__}")
    replace_parts()
    flower_supernode()


def replace_parts() -> None:
    """Put the guard, the pauses and the heartbeats in place; RunError where Flower has not what they stand for."""
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_client, start_client_internal

    parts: list[tuple[Any, str, object, object]] = [
        (start_client_internal, "subprocess", subprocess, Programs()),
        (start_client_internal, "time", time, Pauses()),
        (heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", FLOWER_HEARTBEAT_SECONDS, HEARTBEAT_SECONDS),
        (fleet_http_client, "HEARTBEAT_CALL_TIMEOUT", FLOWER_HEARTBEAT_PATIENCE, HEARTBEAT_PATIENCE),
    ]
    for module, name, expected, _ in parts:
        if getattr(module, name, None) != expected:
            raise RunError(f"expected {name} in {module.__name__} as of flwr {FLOWER_VERSION}, found another")
    for module, name, _, ours in parts:
        setattr(module, name, ours)


if __name__ == "__main__":
    main()
