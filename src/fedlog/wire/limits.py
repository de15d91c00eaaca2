"""What every format has in common: its magic, how large a message may be, and the error for bytes that are none."""

from __future__ import annotations

from fedlog.errors import InputError

MAGIC = b"fl"
MAX_ARRAYS = 2**16 - 1  # MobileNetV2 alone has 260
MAX_DIMENSIONS = 8
MAX_ENTRIES = 2**31  # refuses a forged size before anything is allocated

# What a forged frame of few bytes may make at most: empty rows and zstandard both stand for more than was sent.
_FREE, _PER_BYTE = 2**22, 64


class WireError(InputError):
    """Bytes that are not a message of this version of the protocol."""


def largest_from(size: int) -> int:
    """How many entries, or opened bytes, may come out of a body of that many bytes."""
    return _FREE + _PER_BYTE * size
