"""Freed memory is kept: the next tensors of the same size cost no page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import resource
import torch
from fedlog.engine.training.block.memory import keep_freed_memory

kept = {keep} and keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for turn in range(12):
    if turn == 2:
        before = faults()
    blocks = [torch.ones(2**20) for _ in range(8)]
    del blocks
print(int(kept), faults() - before)
"""


def _count(keep: bool) -> tuple[bool, int]:
    """Whether memory is kept, and the page faults of ten turns with 32 MiB each, in a process of its own."""
    program = [sys.executable, "-c", COUNT.format(keep=keep)]
    kept, faults = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    return bool(int(kept)), int(faults)


def test_tensors_of_the_next_batch_cost_no_page_faults() -> None:
    kept, faults = _count(keep=True)
    if not kept:
        pytest.skip("this C library has no such setting, or the environment made it")
    assert faults < 2**13 / 8  # 32 MiB are 8192 pages
    assert faults < _count(keep=False)[1] / 4
