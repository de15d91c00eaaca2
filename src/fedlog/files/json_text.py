"""Read and write JSON files, parse JSON from the network, and compute digests of plain values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fedlog.files.durable import write_file


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text; raise ValueError if it is not valid JSON or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None


def write_json(path: Path, values: Any) -> None:
    """Write the values to the file as JSON, replacing its content in one durable step."""
    write_file(path, json.dumps(values, indent=1) + "\n")


def read_json(path: Path, missing: Any) -> Any:
    """Read the content of the JSON file; return `missing` if there is no such file."""
    return json.loads(path.read_text()) if path.exists() else missing


def digest_json(values: Any) -> str:
    """Compute the SHA-256 digest of JSON values, as 64 hex digits; equal values have equal digests."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
