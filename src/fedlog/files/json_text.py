"""JSON that came from a file or from someone else."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """What the text holds; a ValueError for anything that is no JSON, too deep a nesting included."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
