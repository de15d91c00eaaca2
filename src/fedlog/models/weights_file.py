"""A model as one safetensors file, whose metadata say which body it belongs to and which method trained it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

# The entry that names the body. Weights made elsewhere need it too, where a file is to be used as a body.
BODY = "body"
# The entry that names the method under which fedlog trained the model. Weights made elsewhere have none.
METHOD = "method"


def write_weights(path: Path, params: Mapping[str, Tensor], body: str, method: str) -> None:
    """Write a trained model."""
    tensors = {name: value.contiguous().clone() for name, value in params.items()}
    save_file(tensors, path, metadata={BODY: body, METHOD: method})
