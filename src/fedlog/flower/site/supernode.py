"""Run Flower's SuperNode with shorter pauses, more frequent heartbeats and this site's guard.

The guard (`guard.py`) is the program that runs tasks: it runs the installed app and never code that came with a run.

Pauses. Flower 1.41.0 has two fixed pauses: a SuperNode that found no work sleeps for 3 s, and one that waits for its
app's answer looks every 0.5 s. If rounds take a second, most of the time goes into these pauses. But each call for work
costs the server a hundredth of a second, so sites must not call too often. Here a site first sleeps for half of the
shortest of its last waits, and then for a third of the time that it has waited so far, up to Flower's 3 s. So it calls
only a few times in each wait, however long rounds are. The second pause is shortened to 0.05 s, which costs nothing:
it only looks into the memory of this process.

Tasks. Flower's program that runs the tasks asks the SuperNode for tasks several times a second. Here the program
sleeps, and the SuperNode wakes it through a pipe when there is a task.

Guard. A SuperNode starts `flower-superexec` by its bare name, and the system looks for that name on the PATH. First on
the PATH is a folder of the site with a substitute that starts the guard. But if the site's folder cannot hold programs
(a disk mounted `noexec`), or has the separator of the PATH in its name, the system would find Flower's program, which
runs the server's code. So the guard is started here as a module of this interpreter.

Heartbeats. Flower's SuperNode sends a heartbeat every 20 s and waits 5 s for the answer. After 60 s without a
heartbeat, Flower takes the site for gone; on a busy machine, two late answers are enough for that. Here heartbeats are
sent more than twice as often, and their answers may take longer.
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
from fedlog.flower.site.guard import GUARDED, INSTALL_FLOWER, WAKE_PIPE, check_flower_version, patch_flower

FLOWER_IDLE_SECONDS, FLOWER_ANSWER_SECONDS = 3.0, 0.5
SHORTEST_PAUSE_SECONDS = 0.1
FIRST_PAUSE, NEXT_PAUSE = 0.5, 0.35  # times the shortest of the last waits, and times the time waited so far
REMEMBERED_WAITS = 6  # enough for the short and the long waits of a round with a secure sum
ANSWER_SECONDS = 0.05
GUARD = "fedlog.flower.site.guard"
FLOWER_HEARTBEAT_SECONDS, FLOWER_HEARTBEAT_PATIENCE = 30, 5
# Flower subtracts its own patience, and sends after 0.7 to 0.9 of the rest: every 7 to 9 s.
HEARTBEAT_SECONDS, HEARTBEAT_PATIENCE = 15, 20


@dataclass
class ShorterPauses:
    """Stands in for the module `time` in Flower's SuperNode: its `sleep` makes shorter pauses."""

    sleep_seconds: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_WAITS))
    waiting_since: float = field(init=False)
    has_answered: bool = False

    def __post_init__(self) -> None:
        """Start to measure the wait for the first message."""
        self.waiting_since = self.now()

    def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, or less if the SuperNode waits for work or for its app's answer."""
        if seconds == FLOWER_IDLE_SECONDS:
            waited = self.now() - self.waiting_since
            expected = min(self.waits, default=0.0)
            pause = max(SHORTEST_PAUSE_SECONDS, FIRST_PAUSE * expected - waited, NEXT_PAUSE * waited)
            self.sleep_seconds(min(FLOWER_IDLE_SECONDS, pause))
        else:
            self.sleep_seconds(ANSWER_SECONDS if seconds == FLOWER_ANSWER_SECONDS else seconds)

    @contextmanager
    def record_wait(self) -> Iterator[None]:
        """Record how long the SuperNode waited for the message that the block answers; then begin the next wait."""
        if self.has_answered:  # the wait for the first message may take hours, and says nothing about rounds
            self.waits.append(self.now() - self.waiting_since)
        try:
            yield
        finally:
            self.waiting_since, self.has_answered = self.now(), True

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute from the real `time` module."""
        return getattr(time, name)


class GuardStarter:
    """Stands in for the module `subprocess` in Flower's SuperNode: its `Popen` starts our guard, which runs tasks."""

    def __init__(self) -> None:
        """Open the pipe through which the guard learns that there is a task."""
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)

    def Popen(self, command: Sequence[str]) -> subprocess.Popen[bytes]:  # noqa: N802
        """Start the guard, which runs only the installed app, in place of `flower-superexec`; refuse other programs."""
        if not command or command[0] != GUARDED:
            raise RunError(
                f"expected {GUARDED} from Flower's SuperNode, found another program: {command[:1]}", hint=INSTALL_FLOWER
            )
        environment = os.environ | {WAKE_PIPE: str(self._read_end)}
        arguments = [sys.executable, "-m", GUARD, *command[1:]]
        return subprocess.Popen(arguments, env=environment, pass_fds=(self._read_end,))

    def wake(self) -> None:
        """Tell the guard that there is a task."""
        with suppress(BlockingIOError):  # the pipe is full: the guard has been woken many times and not looked yet
            os.write(self._write_end, b"!")


def main() -> None:
    """Run Flower's `flower-supernode` with our guard, pauses and heartbeats."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    check_flower_version()
    patch_supernode()
    flower_supernode()


def patch_supernode() -> None:
    """Make Flower use our guard, pauses and heartbeats; raise RunError if Flower's code is not as expected."""
    from flwr.supercore import heartbeat
    from flwr.supernode import fleet_http_client, start_client_internal

    programs, pauses = GuardStarter(), ShorterPauses()
    push_messages: Any = getattr(start_client_internal, "_push_messages", None)

    def wake_and_push(**shared: Any) -> None:
        """Wake the guard, then wait for its answer and send it; Flower calls this when a message has arrived."""
        programs.wake()
        with pauses.record_wait():
            push_messages(**shared)

    patch_flower(start_client_internal, "_push_messages", wake_and_push)
    patch_flower(start_client_internal, "subprocess", programs, expected=subprocess)
    patch_flower(start_client_internal, "time", pauses, expected=time)
    patch_flower(heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", HEARTBEAT_SECONDS, FLOWER_HEARTBEAT_SECONDS)
    patch_flower(fleet_http_client, "HEARTBEAT_CALL_TIMEOUT", HEARTBEAT_PATIENCE, FLOWER_HEARTBEAT_PATIENCE)


if __name__ == "__main__":
    main()
