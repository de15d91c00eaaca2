"""Where encoders keep what they have computed: one folder, files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "FEDLOG_CACHE"


def cache_folder() -> Path:
    """$FEDLOG_CACHE, else the platform's user cache."""
    told = os.environ.get(CACHE_VARIABLE)
    return Path(told).expanduser() if told else platformdirs.user_cache_path("fedlog")


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a draft beside the file, and put it in the file's place."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(Path(draft))
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
