"""The files that a body's name holds: `frozen:FILE`, `onnx:FILE+unit`."""

from __future__ import annotations

from pathlib import Path

from fedlog.models.encoders.names import split_name
from fedlog.models.encoders.onnx_encoder import ONNX, find_weights_beside
from fedlog.models.frozen import FROZEN


def name_with_whole_path(body: str) -> str:
    """The body's name with the whole path of its file, so that it means the same in any folder."""
    told = _find_path(body)
    return body if told is None else body.replace(f":{told}", f":{Path(told).resolve()}", 1)


def list_files(body: str) -> list[Path]:
    """All files that the body is read from, with those of the weights beside an ONNX file."""
    told = _find_path(body)
    if told is None:
        return []
    path = Path(told)
    return [path, *find_weights_beside(path, path.read_bytes())] if body.startswith(ONNX) else [path]


def _find_path(body: str) -> str | None:
    """The path in a body's name, as it was given; None for a body that comes from no file."""
    if body.startswith(FROZEN):
        return body.partition("@")[0].removeprefix(FROZEN)
    parts = split_name(body) if body.startswith(ONNX) else None
    return None if parts is None else parts.encoder.removeprefix(ONNX)
