"""Read and write JSON files, parse JSON from the network, and compute digests of plain values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedlog.files.durable import write_file


def parse_json(text: str | bytes) -> Any:
    """The values in a JSON text; ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None


def write_json(path: Path, values: Any) -> None:
    """Write the values to the file as JSON, replacing its content in one durable step."""
    write_file(path, json.dumps(values, indent=1) + "\n")


def read_json(path: Path, missing: Any) -> Any:
    """The content of the JSON file; `missing` if there is no such file."""
    return json.loads(path.read_text()) if path.exists() else missing


def digest_json(values: Any) -> str:
    """The SHA-256 of plain values, as 64 hex digits; equal values have equal digests."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
