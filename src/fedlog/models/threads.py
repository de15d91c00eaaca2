"""How many threads PyTorch computes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def compute_on_one_thread() -> Iterator[None]:
    """Let PyTorch compute on one thread inside the block.

    Threads that wait for each other spin, so on cores that other processes want too, two are many times slower than
    one; and on one thread a sum is always added up in the same order.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
