"""Keys for randomness: a key is a seed and a path, which name one stream of random numbers for one purpose.

`Key(7).child("client", 3, "round", 12, "order")` names one stream. No two purposes share a stream, so random numbers
do not depend on the order of clients, on the backend, or on a resume from a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import torch


@dataclass(frozen=True)
class Key:
    """The name of one stream of random numbers."""

    seed: int
    path: tuple[str | int, ...] = field(default=())

    def child(self, *names: str | int) -> Key:
        """The key with these names appended to its path: `Key(7).child("client", 3)` is the key of client 3."""
        return Key(self.seed, (*self.path, *names))

    def integer(self) -> int:
        """A number of 63 bits that depends on the seed and on every name in the path."""
        # repr keeps 1 and "1" apart, and the separator keeps ("ab", "c") and ("a", "bc") apart.
        text = "\x1f".join(repr(part) for part in (self.seed, *self.path))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def torch(self) -> torch.Generator:
        """A fresh torch generator at the start of this stream."""
        return torch.Generator().manual_seed(self.integer())

    def numpy(self) -> np.random.Generator:
        """A fresh numpy generator at the start of this stream."""
        return np.random.Generator(np.random.Philox(key=self.integer()))
