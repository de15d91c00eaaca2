"""The versions to store with results: fedlog and its commit, PyTorch, Python, and the processor."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

import fedlog


def list_software_versions() -> dict[str, str]:
    """The versions of fedlog, PyTorch and Python, fedlog's git commit, and the processor, to store with results."""
    return {
        "fedlog": fedlog.__version__,
        "commit": _find_commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": find_processor(),
    }


@cache
def find_processor() -> str:
    """The processor's name and the widest vectors that PyTorch uses on it: "AMD EPYC, AVX512".

    Results depend on it: mathematical libraries choose their code by processor, and sum in another order.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or "unknown"
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


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
