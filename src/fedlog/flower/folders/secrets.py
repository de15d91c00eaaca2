"""Files that only their owner may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from fedlog.errors import InputError

SECRET_MODE = 0o600
SECRET_FOLDER_MODE = 0o700


def write_secret(path: Path, content: bytes) -> None:
    """Create a file with mode 0600 that did not exist before.

    The mode is set at creation: a chmod afterwards would leave a moment in which others can open the file. An existing
    file is refused, since a key that is overwritten cannot be brought back.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=SECRET_FOLDER_MODE)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE)
    except FileExistsError:
        raise InputError(
            f"expected to create a new secret, found a file already there: {path}",
            hint="move it away if you really want a new one; whoever knows the old one must then be told",
        ) from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def check_secret(path: Path) -> None:
    """Nothing, when the file exists and nobody but its owner can read or write it; an InputError otherwise."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        raise InputError(f"expected a secret file, found none: {path}") from None
    if mode & 0o077:
        raise InputError(
            f"expected a secret that only its owner can read, found mode {mode:04o}: {path}",
            hint=f"chmod 600 {path}, and make a new one if others may have read it",
        )
