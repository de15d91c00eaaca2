"""Read the memory and the processor time of processes from Linux."""

from __future__ import annotations

import os
import re
from pathlib import Path


def list_children() -> list[int]:
    """The process numbers of this process's children."""
    task = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(pid) for pid in task.read_text().split()]


def read_peak_bytes(pid: int) -> int:
    """The process's largest resident size so far; shared pages count in each process, so a sum is an upper bound."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return 1024 * int(found.group(1)) if found else 0


def read_cpu_seconds() -> float:
    """The processor seconds of this process and its children, all threads together."""
    return sum(_read_cpu_seconds(pid) for pid in (os.getpid(), *list_children()))


def _read_cpu_seconds(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
