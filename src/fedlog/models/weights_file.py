"""Write a model's parameters as a safetensors file, with its body and the method that trained it as metadata."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from safetensors.torch import save_file
from torch import Tensor

# The entry that names the body. Files made elsewhere need it too, if they are used as `frozen:FILE`.
BODY = "body"
# The entry that names the method with which fedlog trained the model. Files made elsewhere do not have it.
METHOD = "method"
LONGEST_FILE_NAME = 200  # file systems allow 255 characters, including endings that are added later


def write_weights(path: Path, params: Mapping[str, Tensor], method: str, body: str | None = None) -> None:
    """Write a model's parameters to a file, with the name of the method that trained it.

    Give the name of the model's `body` if the file is to be used as the body `frozen:FILE`.
    """
    tensors = {name: value.contiguous().clone() for name, value in params.items()}
    save_file(tensors, path, metadata={METHOD: method} if body is None else {BODY: body, METHOD: method})


def name_weights_file(client: str) -> str:
    """The name of a client's weights file: the client's name, percent-encoded because it may contain a slash."""
    quoted = quote(client, safe=" ")
    if len(quoted) > LONGEST_FILE_NAME:
        quoted = f"{quoted[:LONGEST_FILE_NAME]}-{hashlib.sha256(client.encode()).hexdigest()[:16]}"
    return f"{quoted}.safetensors"
