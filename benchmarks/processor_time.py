"""Measure the processor time of a federation's programs on one machine, by kind of program, while it runs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

# A look at all processes takes a few hundredths of a second itself.
LOOK_SECONDS = 2.0
# The first that a command line holds; a site's tasks and their worker are forks of a server of forks.
KINDS = {
    "multiprocessing.forkserver": "tasks of the sites",
    "fedlog.flower.site.guard": "executors of the sites",
    "flower-superexec": "executor of the server",
    "fedlog.flower.site.supernode": "SuperNodes",
    "flower-supernode": "SuperNodes",
    "fedlog.flower.server.gate": "gate",
    "flower-superlink": "SuperLink",
    "flwr-serverapp": "ServerApp",
}
TASKS = "tasks of the sites"


@dataclass
class ProcessorTime:
    """The seconds of processor time so far, by kind of program, at each look."""

    looks: list[tuple[float, Counter[str]]] = field(default_factory=list)  # (seconds since 1970, kind -> seconds)

    def look(self, root: psutil.Process) -> None:
        """Add up the processor time of all processes that `root` has started."""
        spent: Counter[str] = Counter()
        for process in root.children(recursive=True):
            try:
                command, times = " ".join(process.cmdline()), process.cpu_times()
            except psutil.Error:
                continue  # it has just ended
            kind = next((kind for name, kind in KINDS.items() if name in command), "others")
            spent[kind] += times.user + times.system
            if kind == TASKS:  # those that have ended count with the process that forked them
                spent[kind] += times.children_user + times.children_system
        self.looks.append((time.time(), spent))

    def between(self, start: float, end: float) -> dict[str, float]:
        """Return the seconds spent from the last look before `start` to the last one before `end`, largest first."""
        first, last = (
            max((look for look in self.looks if look[0] <= at), key=lambda look: look[0]) for at in (start, end)
        )
        spent = {kind: round(last[1][kind] - first[1][kind], 2) for kind in last[1] if last[1][kind] > first[1][kind]}
        return dict(sorted(spent.items(), key=lambda item: -item[1]))


@contextmanager
def count_processor_time() -> Iterator[ProcessorTime]:
    """Look at the processes that this one has started, every few seconds until the block ends."""
    counted, ended, root = ProcessorTime(), threading.Event(), psutil.Process()
    counted.look(root)

    def keep_looking() -> None:
        while not ended.wait(LOOK_SECONDS):
            counted.look(root)

    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield counted
    finally:
        ended.set()
        thread.join()
        counted.look(root)
