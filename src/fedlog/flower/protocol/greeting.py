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
from fedlog.errors import add_default_hint
from fedlog.files.json_text import parse_json
from fedlog.flower.protocol.frame import SAME_VERSION, VERSION, SendableError, make_errors_sendable
from fedlog.flower.protocol.plan import Plan, read_plan

HELLO_LIMIT_BYTES = 65536
LATEST_SECONDS = 1e12  # no real clock shows a later time, in seconds since 1970
LONGEST_BODY_NAME = 1000  # a body's name may be the path of a file
Value = TypeVar("Value")
SAME_SCHEMA = "the server and every site need the same schema.toml; ask the operator which one is right"


@dataclass(frozen=True)
class Versions:
    """The versions on which server and sites must agree: of fedlog, of frames, and of the schema (its digest)."""

    fedlog: str
    frame: int
    schema: str


@dataclass(frozen=True)
class SiteProfile:
    """What a site tells the server when it joins a run: its body, and whether it meets only its own classes."""

    body: str
    width: Annotated[int, Meta(gt=0, lt=2**20)]
    digest: Annotated[str, Meta(min_length=64, max_length=64)] | None = None
    """The digest of the body and its parameters; only in runs where all sites must have the same untrained body."""
    closed_world: bool = False
    """Whether the site meets only the classes in its training rows; asked for in runs with `--world closed`."""

    @property
    def as_required_body(self) -> RequiredBody:
        """This site's body as the one that all sites must have."""
        return RequiredBody(self.body, self.digest)


@dataclass(frozen=True)
class RequiredBody:
    """The untrained body that all sites must have: its name and its digest."""

    name: str
    digest: str | None

    def describe_difference(self, profile: SiteProfile) -> str | None:
        """Describe how a site's body differs from the required one; return None if the digests are equal."""
        if self.digest == profile.digest:
            return None
        if self.name != profile.body:
            return f"expected body {self.name} at every site, found: {profile.body}"
        return f"expected the same parameters of body {self.name} at every site, found different ones"


def make_versions(schema_digest: str) -> Versions:
    """Return the versions of this server or site, whose schema has this digest."""
    return Versions(__version__, VERSION, schema_digest)


def encode_hello(ours: Versions, plan: Plan, now: float | None = None) -> bytes:
    """Encode the payload of a HELLO frame; `now` is the time on the server's clock."""
    return json.dumps({**asdict(ours), "plan": plan.as_json(), **_make_time_field(now)}).encode()


def read_hello(payload: bytes, ours: Versions) -> Plan:
    """Read the plan from a HELLO payload.

    Raise SendableError if the plan is invalid, or if the server has another version of fedlog or another schema.
    """
    check_versions(ours, read_versions(payload), "the server")
    with make_errors_sendable():
        return read_plan(_read_all_fields(payload, "a plan").get("plan"))


def encode_welcome(ours: Versions, profile: SiteProfile, now: float | None = None) -> bytes:
    """Encode the payload of a WELCOME frame; `now` is the time on the site's clock."""
    facts = {name: value for name, value in asdict(profile).items() if value}
    return json.dumps({**asdict(ours), **facts, **_make_time_field(now)}).encode()


@add_default_hint(SAME_VERSION)
def read_welcome(payload: bytes, ours: Versions, site: str) -> SiteProfile:
    """Read a site's profile from a WELCOME payload.

    Raise SendableError if the profile is invalid, or if the site has another version of fedlog or another schema.
    """
    check_versions(ours, read_versions(payload), site)
    what = "a body and its number of features"
    profile = _read_fields(payload, SiteProfile, what)
    if not is_printable_body_name(profile.body):
        raise SendableError(
            f"expected {what} in a greeting, found a body's name that is too long or not printable",
            hint=f"give the site a --body of one line, at most {LONGEST_BODY_NAME} characters long",
        )
    return profile


def is_printable_body_name(value: str) -> bool:
    """Whether a site's name for its body can be shown to the operator: one line of text that is not too long."""
    return value.isprintable() and len(value) <= LONGEST_BODY_NAME


def read_versions(payload: bytes) -> Versions:
    """Read the sender's versions from a greeting; raise SendableError if they are missing."""
    return _read_fields(payload, Versions, "fedlog, frame and schema")


def check_versions(ours: Versions, theirs: Versions, who: str) -> None:
    """Raise SendableError if the other side, `who`, has another minor version of fedlog, frame version or schema."""
    if _find_minor_version(theirs.fedlog) != _find_minor_version(ours.fedlog):
        raise SendableError(
            f"expected fedlog {_find_minor_version(ours.fedlog)} at {who}, found: {theirs.fedlog[:32]}",
            hint=SAME_VERSION,
        )
    if theirs.frame != ours.frame:
        raise SendableError(f"expected frame version {ours.frame} at {who}, found: {theirs.frame}", hint=SAME_VERSION)
    if theirs.schema != ours.schema:
        raise SendableError(f"expected schema {ours.schema} at {who}, found: {theirs.schema[:32]}", hint=SAME_SCHEMA)


def read_time(payload: bytes) -> float | None:
    """Read the time on the sender's clock from a greeting, in seconds since 1970; return None if it has no time."""
    found = _read_all_fields(payload, "a time").get("time")
    # Compared before it is converted: JSON has whole numbers that no float holds.
    return float(found) if isinstance(found, int | float) and abs(found) < LATEST_SECONDS else None


def _make_time_field(now: float | None) -> dict[str, float]:
    """Make the field of a greeting that holds the time `now`; None gives no field."""
    return {} if now is None else {"time": round(now, 3)}


def _read_all_fields(payload: bytes, what: str) -> dict[str, Any]:
    """Read all fields of a greeting, unchecked; raise SendableError if the payload is too large or no JSON object."""
    return _read_fields(payload, dict[str, Any], what)


@add_default_hint(SAME_VERSION)
def _read_fields(payload: bytes, kind: type[Value], what: str) -> Value:
    """Read an object of the class `kind` from a greeting; raise SendableError if it is invalid (`what` names it)."""
    if len(payload) > HELLO_LIMIT_BYTES:
        raise SendableError(f"expected at most {HELLO_LIMIT_BYTES} bytes in a greeting, found: {len(payload)}")
    try:
        return msgspec.convert(parse_json(payload), kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise SendableError(f"expected {what} in a greeting, found: {error}") from None


def _find_minor_version(version: str) -> str:
    """Return the part of a version that server and sites must share, such as 0.9 of 0.9.3."""
    return ".".join(version.split(".")[:2])
