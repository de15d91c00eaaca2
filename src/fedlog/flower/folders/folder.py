"""The base class of a server's folder and of a site's folder: paths by name, and a log of events.

The log has one JSON object on each line, for people who follow a run and for programs that read it later.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from fedlog.errors import InputError
from fedlog.files.durable import append_line
from fedlog.files.lock import LockTakenError, lock_file

SITE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
Value = str | int | float | None | list[str] | list[float]


def check_site_or_run_name(text: str) -> str:
    """Return this name of a site or run; raise InputError if it is not fit for file names, logs and Flower's lists."""
    if not SITE_NAME.fullmatch(text):
        raise InputError(
            f"expected a name of at most 32 lower-case letters, digits, dots, dashes or underscores, found: {text!r}",
            hint="for example north, or run-1",
        )
    return text


class HasPath(Protocol):
    """An object that stands for a folder and knows its `path`."""

    @property
    def path(self) -> Path: ...


class SubPath:
    """An attribute for a path in the object's folder: with `logs = SubPath("logs")`, `x.logs` is `x.path / "logs"`."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, folder: HasPath, kind: type[HasPath]) -> Path:
        return folder.path.joinpath(*self._parts)


@dataclass(frozen=True)
class Folder:
    """The base class of a server's folder and of a site's folder."""

    path: Path

    schema_file = SubPath("schema.toml")  # the same at the server and at every site
    flower_home = SubPath("flower")  # the variable FLWR_HOME of Flower's programs
    logs = SubPath("logs")  # the log files of Flower's programs
    event_log = SubPath("logs", "events.jsonl")
    lock = SubPath(".in-use")  # held by the command that runs this server or site

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return the folder at this path; raise InputError if its settings file is missing or invalid."""
        folder = cls(path)
        folder.read_config()
        return folder

    @contextmanager
    def lock_against_other_commands(self) -> Iterator[None]:
        """Lock the folder during the block; raise InputError if another command has locked it.

        Without the lock, two commands that run the same server or site would end each other's programs.
        """
        try:
            with lock_file(self.lock, wait_seconds=0):
                yield
        except LockTakenError:
            raise InputError(
                f"another command runs this server or site already: {self.path}",
                hint="end that command first (Ctrl-C, or its service); a second site needs a folder of its own",
            ) from None

    def read_config(self) -> object:
        """Read the settings file of the server or site; raise InputError if it is missing or invalid."""
        raise NotImplementedError

    def log(self, event: str, **fields: Value) -> None:
        """Append an event to the log of this folder."""
        log_event(self.event_log, event, **fields)


def log_event(path: Path, event: str, **fields: Value) -> None:
    """Append an event to a log. The fields are names, counts, times and sizes, never data or parameters of a site."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = {name: replace_control_characters(v) if isinstance(v, str) else v for name, v in fields.items()}
    line = {"time": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"), "event": event, **shown}
    append_line(path, json.dumps(line))  # whole or not at all: a part of a line would spoil the next one


def replace_control_characters(text: str) -> str:
    """Replace control characters, except line breaks, by `?`: a hostile site or server may have written the text."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read all events in a log, except for an incomplete last line that is still being written."""
    return LineFollower(path).read_new_events()


@dataclass
class LineFollower:
    """Reads a growing file: each read returns the lines that were added since the previous read."""

    path: Path
    position: int = 0

    @classmethod
    def from_end(cls, path: Path) -> LineFollower:
        """Make a follower that skips the lines already in the file."""
        return cls(path, path.stat().st_size if path.exists() else 0)

    def read_new_lines(self) -> list[str]:
        """Return the complete lines added since the previous read; an incomplete last line waits for the next read."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self.position:
                self.position = 0  # the log was rotated
            file.seek(self.position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.position += len(whole)
        return whole.decode(errors="replace").splitlines()

    def read_new_events(self) -> list[dict[str, Any]]:
        """Return the events that were added to the log since the previous read."""
        return [json.loads(line) for line in self.read_new_lines()]
