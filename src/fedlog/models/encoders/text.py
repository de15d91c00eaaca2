"""The text encoder `text:wordllama`: a text's features are the mean of its tokens' vectors.

A table has a vector of 256 numbers for each of 32,000 tokens. The table and the tokenizer are files of the package
`wordllama` (MIT). They are read directly, after a check of their sha256, because the package's loader would contact a
server. Only the first `TEXT_BYTES` bytes of a text's UTF-8 form are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from fedlog.data.public_data_sets import hash_file
from fedlog.data.schema import TEXT_BYTES
from fedlog.errors import InputError
from fedlog.files.json_text import digest_json

TEXT = "text:"  # in a body's name, before the table
WIDTH = 256
WEIGHTS = ("weights/l2_supercat_256.safetensors", "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5")
TOKENIZER = (
    "tokenizers/l2_supercat_tokenizer_config.json",
    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
)


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """Encodes a text as the mean of the table's rows for its tokens; zeros for a text without tokens."""

    name: str
    digest: str
    table: NDArray[np.float32]
    tokenizer: Any
    width: int = WIDTH

    def __deepcopy__(self, memo: dict[int, Any]) -> TextEncoder:
        return self  # it never changes, so copies can share it

    def encode(self, raw: Tensor) -> Tensor:
        """The features of texts, (n, TEXT_BYTES) bytes filled up with zeros -> (n, width) float32."""
        features = np.zeros((len(raw), self.width), dtype=np.float32)
        for at, row in enumerate(raw.numpy()):
            ids = self.tokenizer.encode(decode_text(row), add_special_tokens=False).ids
            if ids:
                features[at] = self.table[ids].mean(axis=0, dtype=np.float64)
        return torch.from_numpy(features)


def decode_text(row: NDArray[Any]) -> str:
    """The text in a row of bytes that `encode_texts` wrote; a last character that was cut off is left out."""
    return row.astype(np.uint8).tobytes().rstrip(b"\0").decode("utf-8", errors="ignore")


def load_text_encoder(name: str, input_shape: tuple[int, ...]) -> TextEncoder:
    """The encoder named `text:wordllama`, for records of one text each."""
    if name != f"{TEXT}wordllama":
        raise InputError(f"unknown text body: {name}", hint=f"use {TEXT}wordllama")
    if input_shape != (TEXT_BYTES,):
        raise InputError(
            f"body {name} needs records of one text and nothing else, found records of shape {input_shape}",
            hint='use one [[feature]] of kind = "text"; `fedlog federate schema DATA --text COLUMN` drafts it',
        )
    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"body {name} needs a package that is not installed", hint="pip install 'fedlog[pretrained]'")
    from tokenizers import Tokenizer  # an extra

    folder = Path(next(iter(spec.submodule_search_locations)))
    weights, words = (_find_checked_file(name, folder, *file) for file in (WEIGHTS, TOKENIZER))
    table = load_file(weights)["embedding.weight"].to(torch.float32).numpy()
    tokenizer = Tokenizer.from_file(str(words))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pooling = "mean of tokens in float64"
    digest = digest_json({"table": WEIGHTS[1], "tokenizer": TOKENIZER[1], "bytes": TEXT_BYTES, "pooling": pooling})
    return TextEncoder(name, digest, table, tokenizer)


def _find_checked_file(name: str, folder: Path, path: str, expected: str) -> Path:
    file = folder / path
    found = hash_file(file) if file.exists() else "no such file"
    if found != expected:
        raise InputError(
            f"body {name}: expected a file with sha256 {expected}, found {found}: {file}",
            hint="install wordllama 0.4 again",
        )
    return file
