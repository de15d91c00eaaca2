"""What has to be on the disk before anything leaves."""

from __future__ import annotations

import os
from pathlib import Path


def force_names(folder: Path) -> None:
    """Nothing; the names of the folder's files then outlast a power cut, as a file's own fsync does not see to."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
