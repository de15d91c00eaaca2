"""Flower's SuperNode, with this site's own guard, shorter pauses while a run is under way, and heartbeats to spare.

Flower 1.41.0 has two pauses without a setting: a SuperNode that found no work sleeps for 3 s, and one that waits for
its app's answer looks every 0.5 s. In rounds of a second both are most of the time. But each call for work takes the
server's programs a hundredth of a second, so twenty sites that call often take the time from each other. Here a site
first sleeps for half of the shortest of its last waits, and then for a third of the time that it has waited, up to
Flower's 3 s: a few calls a wait, however long rounds are. The second pause is a look into the memory of this process.

The program that runs the tasks asks this process for them, several times a second, for its whole life. Here it has a
pipe to this process, and is woken when there is a task.

A SuperNode starts the program that runs its tasks by its bare name, which the system looks for on the PATH: where the
site's folder may hold no programs (a disk mounted `noexec`), or has the separator of the PATH in its name, that would
be Flower's own one, which runs the server's code. So the guard is started here as a module of this interpreter.

Flower sends a heartbeat every 20 s, waits 5 s for its answer, and takes a site for gone after 60 s without one: on a
machine with many sites and other work, two late answers are enough. Here they go out more than twice as often, and
their answers have more time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from fedlog.errors import RunError
from fedlog.flower.site.guard import FLOWER_VERSION, GUARDED, WAKE_PIPE

FLOWER_IDLE_SECONDS, FLOWER_ANSWER_SECONDS = 3.0, 0.5
SHORTEST_PAUSE_SECONDS = 0.1
FIRST_PAUSE, NEXT_PAUSE = 0.5, 0.35  # of the shortest of the last waits, and of the time waited so far
REMEMBERED_WAITS = 6  # a round with a secure sum has short waits and long ones
ANSWER_SECONDS = 0.05
GUARD = "fedlog.flower.site.guard"
FLOWER_HEARTBEAT_SECONDS, FLOWER_HEARTBEAT_PATIENCE = 30, 5
# Flower takes the patience off and 0.7 to 0.9 of the rest: every 7 to 9 s.
HEARTBEAT_SECONDS, HEARTBEAT_PATIENCE = 15, 20


@dataclass
class Pauses:
    """Stands for the module `time` where Flower's SuperNode sleeps."""

    sleep_seconds: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_WAITS))
    waiting_since: float = field(init=False)
    has_answered: bool = False

    def __post_init__(self) -> None:
        """Count the wait for the first message from now on."""
        self.waiting_since = self.now()

    def sleep(self, seconds: float) -> None:
        """Sleep, for less than Flower asks for while it waits for work or for an answer."""
        if seconds == FLOWER_IDLE_SECONDS:
            waited = self.now() - self.waiting_since
            expected = min(self.waits, default=0.0)
            pause = max(SHORTEST_PAUSE_SECONDS, FIRST_PAUSE * expected - waited, NEXT_PAUSE * waited)
            self.sleep_seconds(min(FLOWER_IDLE_SECONDS, pause))
        else:
            self.sleep_seconds(ANSWER_SECONDS if seconds == FLOWER_ANSWER_SECONDS else seconds)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Note that a message has come, and begin to wait for the next one when the block ends."""
        if self.has_answered:  # the wait for the first message may be hours long, and tells nothing of a round
            self.waits.append(self.now() - self.waiting_since)
        try:
            yield
        finally:
            self.waiting_since, self.has_answered = self.now(), True

    def __getattr__(self, name: str) -> Any:
        """Whatever else the module offers."""
        return getattr(time, name)


class Programs:
    """Stands for the module `subprocess` where Flower's SuperNode starts the program that runs its tasks."""

    def __init__(self) -> None:
        """Make the pipe to that program."""
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)

    def Popen(self, command: Sequence[str]) -> subprocess.Popen[bytes]:  # noqa: N802
        """Start this site's guard in its place; refuse any other program."""
        if not command or command[0] != GUARDED:
            raise RunError(f"expected {GUARDED} from Flower's SuperNode, found another program: {command[:1]}")
        environment = os.environ | {WAKE_PIPE: str(self._read_end)}
        arguments = [sys.executable, "-m", GUARD, *command[1:]]
        return subprocess.Popen(arguments, env=environment, pass_fds=(self._read_end,))

    def wake(self) -> None:
        """Let that program look for a task now."""
        with suppress(BlockingIOError):  # it has been woken many times, and not looked yet
            os.write(self._write_end, b"!")


def main() -> None:
    """Run `flower-supernode` as Flower has it, except for what is replaced here."""
    import flwr
    from flwr.supernode.cli.flower_supernode import flower_supernode

    if flwr.__version__ != FLOWER_VERSION:
        raise RunError(f"expected flwr {FLOWER_VERSION} at this site, found: {flwr.__version__}")
    replace_parts()
    flower_supernode()


def replace_parts() -> None:
    """Replace parts of Flower by our guard, pauses and heartbeats; RunError if Flower's parts are not as expected."""
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_client, start_client_internal

    programs, pauses = Programs(), Pauses()
    push_messages = getattr(start_client_internal, "_push_messages", None)
    parts: list[tuple[Any, str, object, object]] = [
        (start_client_internal, "subprocess", subprocess, programs),
        (start_client_internal, "time", time, pauses),
        (heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", FLOWER_HEARTBEAT_SECONDS, HEARTBEAT_SECONDS),
        (fleet_http_client, "HEARTBEAT_CALL_TIMEOUT", FLOWER_HEARTBEAT_PATIENCE, HEARTBEAT_PATIENCE),
    ]
    for module, name, expected, _ in parts:
        if getattr(module, name, None) != expected:
            raise RunError(f"expected {name} in {module.__name__} as of flwr {FLOWER_VERSION}, found another")
    if not callable(push_messages):
        raise RunError(f"expected the name _push_messages in {start_client_internal.__name__}, found none")

    def answer_message(**shared: Any) -> None:
        """Flower calls this when a message has come, and goes on when its answer is sent."""
        programs.wake()
        with pauses.answering():
            push_messages(**shared)

    for module, name, _, ours in (*parts, (start_client_internal, "_push_messages", None, answer_message)):
        setattr(module, name, ours)


if __name__ == "__main__":
    main()
