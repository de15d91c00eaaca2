"""Files that only their owner may read."""

from __future__ import annotations

import stat
from pathlib import Path

from fedlog.errors import InputError
from fedlog.files.durable import PRIVATE_MODE, create_file

SECRET_FOLDER_MODE = 0o700


def write_secret(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read; refuse an existing one, since an overwritten key is lost."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=SECRET_FOLDER_MODE)
    try:
        create_file(path, content, PRIVATE_MODE)
    except FileExistsError:
        raise InputError(
            f"expected to create a new secret, found a file already there: {path}",
            hint="move it away if you really want a new one; whoever knows the old one must then be told",
        ) from None


def check_secret(path: Path) -> None:
    """Refuse a secret that is not there, or that others than its owner can read or write."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        raise InputError(f"expected a secret file, found none: {path}") from None
    if mode & 0o077:
        raise InputError(
            f"expected a secret that only its owner can read, found mode {mode:04o}: {path}",
            hint=f"chmod 600 {path}, and make a new one if others may have read it",
        )
