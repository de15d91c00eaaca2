"""Tell a full disk from every other error of the system."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

# No space, a user's quota, or a limit on the size of a file.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# What a round writes is far smaller; with less than this something will not fit soon.
LEAST_FREE_BYTES = 16 * 2**20


def is_full(error: BaseException) -> bool:
    """Whether the error says that the disk is full."""
    return isinstance(error, OSError) and error.errno in FULL


def is_nearly_full(folder: Path) -> bool:
    """Whether the disk of this folder has hardly any room left."""
    return shutil.disk_usage(folder).free < LEAST_FREE_BYTES
