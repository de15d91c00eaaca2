"""What every format has in common: its magic, how large a message may be, and the error for bytes that are none."""

from __future__ import annotations

from fedlog.errors import InputError

MAGIC = b"fl"
MAX_ARRAYS = 2**16 - 1  # MobileNetV2 alone has 260
MAX_DIMENSIONS = 8
MAX_ENTRIES = 2**31  # refuses a forged size before anything is allocated


class WireError(InputError):
    """Bytes that are not a message of this version of the protocol."""
