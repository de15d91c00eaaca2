"""One process at a time: a lock that ends with the processes that hold it, however they end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

POLL_SECONDS = 0.05


class LockTakenError(Exception):
    """Another process kept the lock for longer than this one would wait."""


@contextmanager
def lock_file(path: Path, wait_seconds: float | None = None) -> Iterator[None]:
    """Hold a lock on the file at `path`, which is created if need be and never removed.

    LockTakenError if another process holds it for `wait_seconds`; without a limit, wait as long as it takes. Processes
    forked while the lock is held share it: the workers of a killed run hold it until they end. A process that asks
    twice waits for itself.
    """
    with _hold(path, lambda: os.open(path, os.O_RDWR | os.O_CREAT, 0o644), wait_seconds):
        yield


@contextmanager
def lock_folder(folder: Path, wait_seconds: float | None = None) -> Iterator[None]:
    """Hold a lock on a folder itself, in the same way; it is created if need be.

    The process that holds it may remove the folder: others that wait notice it, and start again.
    """

    def opened() -> int:
        while True:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                return os.open(folder, os.O_RDONLY)
            except (FileNotFoundError, FileExistsError):
                # Another process removed the folder in between. A file in its place stays an error.
                if folder.is_file():
                    raise

    if os.name == "posix":
        with _hold(folder, opened, wait_seconds):
            yield
    else:  # a folder cannot be opened, and so has no lock
        yield


@contextmanager
def _hold(path: Path, opened: Callable[[], int], wait_seconds: float | None) -> Iterator[None]:
    # Not `filelock.FileLock`: it gives up its lock in forked workers, and takes no folder.
    deadline = None if wait_seconds is None else time.monotonic() + wait_seconds
    while True:
        descriptor = opened()
        try:
            if lock_descriptor(descriptor, blocking=False) and _is_still_there(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)
        if deadline is not None and time.monotonic() > deadline:
            raise LockTakenError(str(path))
        time.sleep(POLL_SECONDS)


def _is_still_there(descriptor: int, path: Path) -> bool:
    """Whether the path still names what the descriptor has open: a lock on a removed file guards nothing."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
