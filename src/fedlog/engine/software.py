"""The versions to store with results: fedlog and its commit, PyTorch, Python, and the machine."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

import fedlog


def list_software_versions() -> dict[str, str]:
    """The versions of fedlog, PyTorch and Python, fedlog's git commit, and the machine type, to store with results."""
    return {
        "fedlog": fedlog.__version__,
        "commit": _find_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


@cache
def _find_commit() -> str:
    """The git commit of this source code, with a plus sign if files were changed; "unknown" for an installed package.

    The result is cached, because a process keeps the code that was there when it started.
    """
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"
