"""Make the C library keep freed memory for the next tensors."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import lru_cache

KEPT_BYTES = 2**27  # freed at the end of the heap, before any of it goes back to the system
LARGEST_KEPT_BYTES = 2**25  # larger blocks are mapped and unmapped one by one; the C library takes no higher limit
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of its settings


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Let this process keep freed memory for its next tensors, and return whether it does.

    By default glibc gives large blocks back to the system, and every page of the next block costs a page fault: up to a
    quarter of the time of small bodies. Settings in environment variables are respected.
    """
    if platform.libc_ver()[0] != "glibc" or {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & os.environ.keys():
        return False
    library = ctypes.CDLL(None)
    limits = ((_MMAP_THRESHOLD, LARGEST_KEPT_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES))
    return all(library.mallopt(setting, limit) == 1 for setting, limit in limits)
