"""The greeting at the start of a run: both sides compare their versions of fedlog and their schemas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from fedlog import __version__
from fedlog.files.json_text import parse_json
from fedlog.flower.protocol.frame import VERSION, FrameError

HELLO_LIMIT_BYTES = 65536
LATEST_SECONDS = 1e12  # no real clock shows a later time, in seconds since 1970
Value = TypeVar("Value")


@dataclass(frozen=True)
class Identity:
    """The versions and the digest of the schema, in which both sides must agree."""

    fedlog: str
    frame: int
    schema: str


@dataclass(frozen=True)
class _Time:
    """The time field of a greeting, as a JSON value that is not checked yet."""

    time: Any = None


def identity(schema_digest: str) -> Identity:
    """The versions of this installation, with the digest of its schema."""
    return Identity(__version__, VERSION, schema_digest)


def read_greeting(payload: bytes, kind: type[Value], what: str) -> Value:
    """Read the fields of `kind` from a greeting, which may hold other fields; FrameError if one is missing or wrong."""
    if len(payload) > HELLO_LIMIT_BYTES:
        raise FrameError(f"expected at most {HELLO_LIMIT_BYTES} bytes in a greeting, found: {len(payload)}")
    try:
        return msgspec.convert(parse_json(payload), kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise FrameError(f"expected {what} in a greeting, found: {error}") from None


def read_identity(payload: bytes) -> Identity:
    """The other side's versions and schema in a greeting; FrameError if they are missing."""
    return read_greeting(payload, Identity, "fedlog, frame and schema")


def check_identity(ours: Identity, theirs: Identity, who: str) -> None:
    """Refuse another minor version of fedlog, another frame version or another schema."""
    if _series(theirs.fedlog) != _series(ours.fedlog):
        raise FrameError(f"expected fedlog {_series(ours.fedlog)} at {who}, found: {theirs.fedlog[:32]}")
    if theirs.frame != ours.frame:
        raise FrameError(f"expected frame version {ours.frame} at {who}, found: {theirs.frame}")
    if theirs.schema != ours.schema:
        raise FrameError(f"expected schema {ours.schema} at {who}, found: {theirs.schema[:32]}")


def time_field(now: float | None) -> dict[str, float]:
    """The current time as a field of a greeting; no field if it is None."""
    return {} if now is None else {"time": round(now, 3)}


def read_time(payload: bytes) -> float | None:
    """The time on the other side's clock in a greeting, in seconds since 1970; None if there is none."""
    found = read_greeting(payload, _Time, "a time").time
    # Compared before it is converted: JSON has whole numbers that no float holds.
    return float(found) if isinstance(found, int | float) and abs(found) < LATEST_SECONDS else None


def _series(version: str) -> str:
    """The part of a version that must be equal, such as 0.9: before 1.0, a minor version may change the messages."""
    return ".".join(version.split(".")[:2])
