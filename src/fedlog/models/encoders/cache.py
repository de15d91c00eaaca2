"""The cache of features of frozen encoders on disk: each record is encoded only once.

There is a folder for each encoder, named by its digest. Its files hold up to 1024 records each: the 16-byte hashes of
the raw records, and their features. Two processes may fill a folder at the same time; then some records are encoded
twice, which does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from fedlog.files.cache import find_cache_folder
from fedlog.files.durable import write_file

RECORDS_OF_A_FILE = 1024
HASH_BYTES = 16

Progress = Callable[[int, int], object]
"""A function that is called with (records encoded so far, records to encode)."""


class Encoder(Protocol):
    """A frozen function from raw records (n, *input_shape) to features (n, width).

    A record's features must not depend on the other records of a batch: record privacy relies on it.
    """

    @property
    def name(self) -> str:
        """The encoder's name: a body's name without feature maps and clip."""

    @property
    def width(self) -> int:
        """The number of features."""

    @property
    def digest(self) -> str:
        """64 hex digits, equal for two encoders exactly if their weights and their preparation of inputs are equal."""

    def encode(self, raw: Tensor) -> Tensor:
        """The features of raw records, (n, *input_shape) -> (n, width) float32; pixels are from 0 to 255."""


def hash_records(raw: Tensor) -> list[bytes]:
    """The hash of each record's shape, type and values, 16 bytes."""
    values = raw.contiguous().numpy()
    start = f"{values.dtype}{values.shape[1:]}".encode()
    return [blake2b(start + row.tobytes(), digest_size=HASH_BYTES).digest() for row in values]


class FeatureCache:
    """The features of one frozen encoder on disk: each record is encoded only once."""

    def __init__(self, encoder: Encoder, folder: Path | None = None) -> None:
        self._encoder = encoder
        self._folder = (folder or find_cache_folder() / "features") / encoder.digest[:32]

    def get_or_encode(self, raw: Tensor, progress: Progress | None = None) -> Tensor:
        """The features of raw records, (n, *input_shape) -> (n, width) float32; new records are added to the cache."""
        wanted = hash_records(raw)
        known = self._read_cached_features(set(wanted))
        missing = {key: at for at, key in enumerate(wanted) if key not in known}
        order = list(missing.items())
        for start in range(0, len(order), RECORDS_OF_A_FILE):
            part = order[start : start + RECORDS_OF_A_FILE]
            features = self._encoder.encode(raw[torch.tensor([at for _, at in part])])
            self._write_file([key for key, _ in part], features)
            known.update((key, features[at]) for at, (key, _) in enumerate(part))
            if progress is not None:
                progress(min(start + RECORDS_OF_A_FILE, len(order)), len(order))
        return torch.stack([known[key] for key in wanted]) if wanted else torch.zeros(0, self._encoder.width)

    def _read_cached_features(self, wanted: set[bytes]) -> dict[bytes, Tensor]:
        found: dict[bytes, Tensor] = {}
        for path in sorted(self._folder.glob("*.safetensors")):
            try:
                stored = load_file(path)
                keys, features = stored["keys"].numpy(), stored["features"]
            except (OSError, SafetensorError, KeyError):
                continue  # the records of a damaged file are encoded again
            for at, key in enumerate(keys):
                if (kept := key.tobytes()) in wanted:
                    found[kept] = features[at]
        return found

    def _write_file(self, keys: list[bytes], features: Tensor) -> None:
        """Write the features of these records to a new file of the cache."""
        name = blake2b(b"".join(keys), digest_size=16).hexdigest()
        table = torch.from_numpy(np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), HASH_BYTES).copy())
        entries = {"keys": table, "features": features.contiguous()}
        write_file(self._folder / f"{name}.safetensors", save(entries))
