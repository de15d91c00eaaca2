"""Locks that one process at a time can hold, and that are released when this process ends, even if it is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

POLL_SECONDS = 0.05


class LockTakenError(Exception):
    """Another process held the lock for longer than this process was willing to wait."""


@contextmanager
def lock_file(path: Path, wait_seconds: float | None = None) -> Iterator[None]:
    """Hold a lock on the file at `path` during the block; the file is created if need be and never removed.

    Raise LockTakenError if another process still holds the lock after `wait_seconds`; None waits forever. A forked
    process shares the lock: if a run is killed, its workers hold the lock until they end. A process that already holds
    the lock and asks for it again waits forever.
    """
    with _hold_lock(path, lambda: os.open(path, os.O_RDWR | os.O_CREAT, 0o644), wait_seconds):
        yield


@contextmanager
def lock_folder(folder: Path, wait_seconds: float | None = None) -> Iterator[None]:
    """Hold a lock on a folder during the block, as `lock_file` does on a file; the folder is created if need be.

    The process that holds the lock may remove the folder: waiting processes notice this, and create the folder again.
    """

    def open_folder() -> int:
        while True:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                return os.open(folder, os.O_RDONLY)
            except (FileNotFoundError, FileExistsError):
                # Another process removed the folder in between. A file in its place stays an error.
                if folder.is_file():
                    raise

    if os.name == "posix":
        with _hold_lock(folder, open_folder, wait_seconds):
            yield
    else:  # a folder cannot be opened, and so has no lock
        yield


@contextmanager
def _hold_lock(path: Path, open_path: Callable[[], int], wait_seconds: float | None) -> Iterator[None]:
    # Not `filelock.FileLock`: it gives up its lock in forked workers, and takes no folder.
    deadline = None if wait_seconds is None else time.monotonic() + wait_seconds
    while True:
        descriptor = open_path()
        try:
            if lock_descriptor(descriptor, blocking=False) and _is_same_file(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)
        if deadline is not None and time.monotonic() > deadline:
            raise LockTakenError(f"{path} is locked by another process")
        time.sleep(POLL_SECONDS)


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Whether the path still leads to this open file or folder; if it does not, a lock on the open file is useless."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
