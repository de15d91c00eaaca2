"""The greeting at the start of a run: the server sends a plan (HELLO), and a site answers with its profile (WELCOME).

Both sides also send their version of fedlog and the digest of their schema, in which they must agree.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from fedlog import __version__
from fedlog.files.json_text import parse_json
from fedlog.flower.protocol.frame import VERSION, FrameError, turn_errors_into_refusals
from fedlog.flower.protocol.plan import Plan, read_plan

HELLO_LIMIT_BYTES = 65536
LATEST_SECONDS = 1e12  # no real clock shows a later time, in seconds since 1970
LONGEST_BODY_NAME = 1000  # a body's name may be the path of a file
Value = TypeVar("Value")


@dataclass(frozen=True)
class Identity:
    """The versions and the digest of the schema, in which both sides must agree."""

    fedlog: str
    frame: int
    schema: str


@dataclass(frozen=True)
class SiteProfile:
    """The facts about itself that a site tells the server when it joins a run."""

    body: str
    width: Annotated[int, Meta(gt=0, lt=2**20)]
    digest: Annotated[str, Meta(min_length=64, max_length=64)] | None = None
    """The digest of the body and its parameters; only in runs where all sites must have the same untrained body."""
    closed_world: bool = False
    """Whether the site meets only the classes in its training rows; asked for in runs with `--world closed`."""

    @property
    def as_required_body(self) -> RequiredBody:
        """This site's body, in the form in which other sites' bodies are compared with it."""
        return RequiredBody(self.body, self.digest)


@dataclass(frozen=True)
class RequiredBody:
    """The untrained body that all sites must have: its name and its digest."""

    name: str
    digest: str | None

    def describe_difference(self, profile: SiteProfile) -> str | None:
        """How a site's body differs from the required one, in words; None if both have the same digest."""
        if self.digest == profile.digest:
            return None
        if self.name != profile.body:
            return f"expected body {self.name} at every site, found: {profile.body}"
        return f"expected the same parameters of body {self.name} at every site, found different ones"


def make_identity(schema_digest: str) -> Identity:
    """The versions of this installation, with the digest of its schema."""
    return Identity(__version__, VERSION, schema_digest)


def encode_hello(ours: Identity, plan: Plan, now: float | None = None) -> bytes:
    """The payload of a HELLO frame; `now` is the time on the server's clock."""
    return json.dumps({**asdict(ours), "plan": plan.as_plain(), **_time_field(now)}).encode()


def read_hello(payload: bytes, ours: Identity) -> Plan:
    """The plan in a HELLO payload; FrameError if versions or schema differ, or if no site accepts the plan."""
    check_identity(ours, read_identity(payload), "the server")
    with turn_errors_into_refusals():
        return read_plan(_parse(payload, "a plan").get("plan"))


def encode_welcome(ours: Identity, profile: SiteProfile, now: float | None = None) -> bytes:
    """The payload of a WELCOME frame; `now` is the time on the site's clock."""
    facts = {name: value for name, value in asdict(profile).items() if value}
    return json.dumps({**asdict(ours), **facts, **_time_field(now)}).encode()


def read_welcome(payload: bytes, ours: Identity, site: str) -> SiteProfile:
    """The site's profile in a WELCOME payload; FrameError if versions or schema differ, or if there is no profile."""
    check_identity(ours, read_identity(payload), site)
    what = "a body and its number of features"
    profile = _read(payload, SiteProfile, what)
    if not is_body_name(profile.body):
        raise FrameError(f"expected {what} in a greeting, found a body's name that is too long or not printable")
    return profile


def is_body_name(value: str) -> bool:
    """Whether a site's name for its body can be shown to the operator: one line of text that is not too long."""
    return value.isprintable() and len(value) <= LONGEST_BODY_NAME


def read_identity(payload: bytes) -> Identity:
    """The other side's versions and schema in a greeting; FrameError if they are missing."""
    return _read(payload, Identity, "fedlog, frame and schema")


def check_identity(ours: Identity, theirs: Identity, who: str) -> None:
    """Refuse another minor version of fedlog, another frame version or another schema."""
    if _minor_version(theirs.fedlog) != _minor_version(ours.fedlog):
        raise FrameError(f"expected fedlog {_minor_version(ours.fedlog)} at {who}, found: {theirs.fedlog[:32]}")
    if theirs.frame != ours.frame:
        raise FrameError(f"expected frame version {ours.frame} at {who}, found: {theirs.frame}")
    if theirs.schema != ours.schema:
        raise FrameError(f"expected schema {ours.schema} at {who}, found: {theirs.schema[:32]}")


def read_time(payload: bytes) -> float | None:
    """The time on the other side's clock in a greeting, in seconds since 1970; None if there is none."""
    found = _parse(payload, "a time").get("time")
    # Compared before it is converted: JSON has whole numbers that no float holds.
    return float(found) if isinstance(found, int | float) and abs(found) < LATEST_SECONDS else None


def _time_field(now: float | None) -> dict[str, float]:
    """The current time as a field of a greeting; no field if it is None."""
    return {} if now is None else {"time": round(now, 3)}


def _parse(payload: bytes, what: str) -> dict[str, Any]:
    """The fields of a greeting, not checked yet; FrameError if the payload is not a JSON object or is too large."""
    return _read(payload, dict[str, Any], what)


def _read(payload: bytes, kind: type[Value], what: str) -> Value:
    """The fields of `kind` in a greeting, which may have other fields too; FrameError if one is missing or wrong."""
    if len(payload) > HELLO_LIMIT_BYTES:
        raise FrameError(f"expected at most {HELLO_LIMIT_BYTES} bytes in a greeting, found: {len(payload)}")
    try:
        return msgspec.convert(parse_json(payload), kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise FrameError(f"expected {what} in a greeting, found: {error}") from None


def _minor_version(version: str) -> str:
    """The part of a version that must be equal, such as 0.9: before 1.0, a minor version may change the messages."""
    return ".".join(version.split(".")[:2])
