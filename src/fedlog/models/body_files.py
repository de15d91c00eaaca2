"""Find the files that bodies are read from, such as FILE in `frozen:FILE` or `onnx:FILE+unit`."""

from __future__ import annotations

from pathlib import Path

from fedlog.models.encoders.names import split_name
from fedlog.models.encoders.onnx_encoder import ONNX, find_external_weights
from fedlog.models.frozen import FROZEN


def use_absolute_path(body: str) -> str:
    """The body's name with the absolute path of its file, so that it can be used from any folder."""
    path = find_path_in_name(body)
    return body if path is None else body.replace(f":{path}", f":{Path(path).resolve()}", 1)


def list_body_files(body: str) -> list[Path]:
    """All files that a body is read from, with the weight files of an ONNX file."""
    found = find_path_in_name(body)
    if found is None:
        return []
    path = Path(found)
    return [path, *find_external_weights(path, path.read_bytes())] if body.startswith(ONNX) else [path]


def find_path_in_name(body: str) -> str | None:
    """The path in a body's name, as the user wrote it; None for a body without a file."""
    if body.startswith(FROZEN):
        return body.partition("@")[0].removeprefix(FROZEN)
    parts = split_name(body) if body.startswith(ONNX) else None
    return None if parts is None else parts.encoder.removeprefix(ONNX)
