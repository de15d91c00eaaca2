"""The library of compiled functions, made from the C files in this folder, and the way to call them.

It is compiled when the package is installed. If that failed, `AVAILABLE` is false: layers that need compiled code then
have no block, and bodies with such layers are trained by a slower backend.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_NEWEST = "step_adam_update_float"  # a library from an older version of fedlog lacks it, and is not used


def _load_library() -> ctypes.CDLL | None:
    found = find_spec("fedlog.engine.training.block._convolve")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
    except OSError:  # compiled for another machine
        return None
    if not hasattr(library, _NEWEST):
        return None
    library.convolve_scratch.restype = library.norm_scratch.restype = ctypes.c_int64
    return library


LIBRARY: Any = _load_library()  # None if it was not compiled
AVAILABLE = LIBRARY is not None
NUMBER = {torch.float32: "float", torch.float64: "double"}


def run_compiled(function: str, dtype: torch.dtype, sizes: ctypes.Structure, *tensors: Tensor | None) -> bool:
    """Call the compiled function for this type of numbers, with contiguous tensors; None becomes a null pointer.

    The result has a meaning only for `gather_pixels`: False if its arguments are wrong.
    """
    addresses = [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
    return bool(getattr(LIBRARY, f"{function}_{NUMBER[dtype]}")(ctypes.byref(sizes), *addresses))


def name_instruction_set() -> str:
    """The name of the instruction set that the compiled functions use on this processor."""
    return "none" if LIBRARY is None else {0: "plain", 2: "AVX2", 5: "AVX-512"}[LIBRARY.convolve_instructions()]


def compute_library_digest() -> str:
    """A digest of the compiled library; cached timings are valid only for the same digest."""
    return "none" if LIBRARY is None else hashlib.sha256(Path(LIBRARY._name).read_bytes()).hexdigest()


_own = threading.local()


def get_scratch_space(size: int, dtype: torch.dtype) -> Tensor:
    """Memory for at least `size` temporary numbers; it is kept between calls, because new memory costs page faults."""
    kept: dict[torch.dtype, Tensor] = _own.__dict__.setdefault("kept", {})
    if dtype not in kept or kept[dtype].numel() < size:  # `len` of a tensor is slow
        kept[dtype] = torch.empty(size, dtype=dtype)
    return kept[dtype]
