"""The first exchange of a run: both sides say which fedlog they are and which schema they hold, or go no further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from fedlog import __version__
from fedlog.files.json_text import parse_json
from fedlog.flower.protocol.frame import VERSION, FrameError

HELLO_LIMIT_BYTES = 65536
LATEST_SECONDS = 1e12  # of a clock that is one
Value = TypeVar("Value")


@dataclass(frozen=True)
class Identity:
    """The versions and the schema on which both sides must agree."""

    fedlog: str
    frame: int
    schema: str


@dataclass(frozen=True)
class _Time:
    """The time in a greeting, not yet checked."""

    time: Any = None


def identity(schema_digest: str) -> Identity:
    """The identity of this installation with this schema."""
    return Identity(__version__, VERSION, schema_digest)


def read_greeting(payload: bytes, kind: type[Value], what: str) -> Value:
    """The fields of this dataclass in a greeting, which may hold more; a FrameError where one is missing or wrong."""
    if len(payload) > HELLO_LIMIT_BYTES:
        raise FrameError(f"expected at most {HELLO_LIMIT_BYTES} bytes in a greeting, found: {len(payload)}")
    try:
        return msgspec.convert(parse_json(payload), kind)
    except (ValueError, msgspec.ValidationError):
        raise FrameError(f"expected {what} in a greeting, found something else") from None


def read_identity(payload: bytes) -> Identity:
    """The other side's identity; a FrameError if the bytes hold none."""
    return read_greeting(payload, Identity, "fedlog, frame and schema")


def check_identity(ours: Identity, theirs: Identity, who: str) -> None:
    """Refuse another minor version of fedlog, another frame version or another schema."""
    if _series(theirs.fedlog) != _series(ours.fedlog):
        raise FrameError(f"expected fedlog {_series(ours.fedlog)} at {who}, found: {theirs.fedlog[:32]}")
    if theirs.frame != ours.frame:
        raise FrameError(f"expected frame version {ours.frame} at {who}, found: {theirs.frame}")
    if theirs.schema != ours.schema:
        raise FrameError(f"expected schema {ours.schema} at {who}, found: {theirs.schema[:32]}")


def tell_time(now: float | None) -> dict[str, float]:
    """The clock as a field of a greeting; no field for None."""
    return {} if now is None else {"time": round(now, 3)}


def read_time(payload: bytes) -> float | None:
    """The other side's clock in a greeting, in seconds since 1970; None where it tells none."""
    told = read_greeting(payload, _Time, "a time").time
    # Compared first: JSON has whole numbers that no float holds.
    return float(told) if isinstance(told, int | float) and abs(told) < LATEST_SECONDS else None


def _series(version: str) -> str:
    """The part of a version that must agree: before 1.0, a minor version may change what crosses."""
    return ".".join(version.split(".")[:2])
