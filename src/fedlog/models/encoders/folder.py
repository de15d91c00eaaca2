"""Where encoders keep what they have computed."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "FEDLOG_CACHE"


def cache_folder() -> Path:
    """$FEDLOG_CACHE, else the platform's user cache."""
    told = os.environ.get(CACHE_VARIABLE)
    return Path(told).expanduser() if told else platformdirs.user_cache_path("fedlog")
