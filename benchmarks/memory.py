"""Read the memory and the processor time of processes from Linux."""

from __future__ import annotations

import os
import re
from pathlib import Path


def children() -> list[int]:
    """The process numbers of this process's children."""
    task = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(pid) for pid in task.read_text().split()]


def peak_bytes(pid: int) -> int:
    """The largest resident size so far; pages shared between processes are counted in each: an upper bound."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return 1024 * int(found.group(1)) if found else 0


def cpu_seconds() -> float:
    """The processor seconds of this process and its children, all threads together."""
    return sum(_cpu_seconds(pid) for pid in (os.getpid(), *children()))


def _cpu_seconds(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
