"""A model as one safetensors file, whose metadata say which body it belongs to and which method trained it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from safetensors.torch import save_file
from torch import Tensor

# The entry that names the body. Weights made elsewhere need it too, where a file is to be used as a body.
BODY = "body"
# The entry that names the method under which fedlog trained the model. Weights made elsewhere have none.
METHOD = "method"
LONGEST_FILE_NAME = 200  # file systems allow 255 with all endings, and a letter beyond ASCII takes six or more


def write_weights(path: Path, params: Mapping[str, Tensor], body: str, method: str) -> None:
    """Write a trained model."""
    tensors = {name: value.contiguous().clone() for name, value in params.items()}
    save_file(tensors, path, metadata={BODY: body, METHOD: method})


def weights_name(client: str) -> str:
    """The name of the file with a client's parameters. The client's name is quoted: it may contain a slash."""
    quoted = quote(client, safe=" ")
    if len(quoted) > LONGEST_FILE_NAME:
        quoted = f"{quoted[:LONGEST_FILE_NAME]}-{hashlib.sha256(client.encode()).hexdigest()[:16]}"
    return f"{quoted}.safetensors"
