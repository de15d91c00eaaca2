"""Limit the number of threads that PyTorch uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def compute_on_one_thread() -> Iterator[None]:
    """Let PyTorch use only one thread inside the `with` block.

    If other processes use the same cores, two threads are many times slower than one, because a thread that waits for
    another keeps its core busy. On one thread, a sum is also always added in the same order.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
