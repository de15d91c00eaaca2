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

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def typical_turn():
    turns = []
    for _ in range(11):
        before = faults()
        blocks = [torch.ones(2**20) for _ in range(8)]
        del blocks
        turns.append(faults() - before)
    return sorted(turns)[5]

print(typical_turn(), int(keep_freed_memory()), typical_turn())
"""


def test_tensors_of_the_next_batch_cost_no_page_faults() -> None:
    """A typical turn with 32 MiB, before and after: the median of eleven, since the heap may still grow in one.

    In a process of its own, since the setting is the process's.
    """
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    before, kept, after = map(int, done.stdout.split())
    if not kept:
        pytest.skip("this C library has no such setting, or the environment made it")
    assert before > 2**13 / 4  # 32 MiB are 8192 pages
    assert after < 2**13 / 100
