"""A log of what happened, one JSON object a line: for people who follow a run and for programs that read it later."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Value = str | int | float | None | list[str] | list[float]


def log_event(path: Path, event: str, **fields: Value) -> None:
    """Append one line of names, counts, times and sizes; never a record, a feature, a label or a parameter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = {"time": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"), "event": event, **fields}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_events(path: Path) -> list[dict[str, Value]]:
    """The lines so far; a last line that is still being written is left for later."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


@dataclass
class EventFollower:
    """Reads the lines that are added to a log after it was opened."""

    path: Path
    position: int = 0

    @classmethod
    def from_now(cls, path: Path) -> EventFollower:
        """A follower that begins behind the lines that are there now."""
        return cls(path, path.stat().st_size if path.exists() else 0)

    def read_new(self) -> list[dict[str, Any]]:
        """The whole lines since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self.position:
                self.position = 0  # the log was rotated
            file.seek(self.position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.position += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
