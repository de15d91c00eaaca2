"""Find the folder in which data sets, features and timings are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder(variable: str = "FEDLOG_CACHE") -> Path:
    """The folder named by this environment variable; if it is not set, the platform's user cache."""
    given = os.environ.get(variable)
    return Path(given).expanduser() if given else platformdirs.user_cache_path("fedlog")
