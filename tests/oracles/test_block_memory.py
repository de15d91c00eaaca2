"""Freed memory is kept: the next tensors of the same size cost no page faults."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import ctypes
import resource
import torch
from fedlog.engine.training.block.memory import keep_freed_memory

# Every large block on pages of its own: left to itself, glibc now and then keeps such blocks.
ctypes.CDLL(None).mallopt(-3, 2**17)
kept = {keep} and keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

turns = []
for _ in range(11):
    before = faults()
    blocks = [torch.ones(2**20) for _ in range(8)]
    del blocks
    turns.append(faults() - before)
print(int(kept), sorted(turns)[5])
"""


def _count(keep: bool) -> tuple[bool, int]:
    """Whether memory is kept, and the page faults of a typical turn with 32 MiB, in a process of its own.

    The median of eleven turns: the heap may still grow by a block in one of them.
    """
    program = [sys.executable, "-c", COUNT.format(keep=keep)]
    kept, faults = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    return bool(int(kept)), int(faults)


def test_tensors_of_the_next_batch_cost_no_page_faults() -> None:
    kept, faults = _count(keep=True)
    if not kept:
        pytest.skip("this C library has no such setting, or the environment made it")
    assert faults < 2**13 / 100  # 32 MiB are 8192 pages
    assert _count(keep=False)[1] > 2**13 / 4
