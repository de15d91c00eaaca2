"""Find the folder in which data sets, features and timings are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def find_cache_folder(variable: str = "FEDLOG_CACHE") -> Path:
    """Return the folder that this environment variable names, or else fedlog's folder in the user's cache."""
    given = os.environ.get(variable)
    return Path(given).expanduser() if given else platformdirs.user_cache_path("fedlog")
