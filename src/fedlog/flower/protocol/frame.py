"""Frames: the bytes that each Flower message carries, a small header (kind, run, round) and a payload.

    frame = magic(4) version(1) kind(1) run(8) round(4) exchange(1) length(4) | payload

The payload of WORK and UPLOAD is an encoded message of the engine. Only these bytes count as bits of a run; the 23
bytes of the header belong to the transport. Flower carries a frame as one value, because it adds a header of its own to
every array.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Annotated

import msgspec
from flwr.app import ConfigRecord, Message, RecordDict
from msgspec import Meta

from fedlog.errors import InputError, add_default_hint
from fedlog.files.json_text import parse_json
from fedlog.wire.codec import WireError

MAGIC = b"FLFR"
VERSION = 1
_HEADER = struct.Struct("<4sBB8sIBI")
HEADER_BYTES = _HEADER.size
DEFAULT_LIMIT_BYTES = 64 * 2**20
# The number that a FINISH frame has in place of an exchange; no exchange of a method has it.
FINISH_EXCHANGE = 255
# The bounds of the announcement of a secure sum.
_LENGTH = 4
SESSION_BYTES = 16
LARGEST_SUM_NUMBER = 2**63 - 1  # of a sum in its session
MOST_MEMBERS = 10_000
RECORD = "fedlog"
ENTRY = "frame"
SAME_VERSION = "install the same version of fedlog at the server and at every site"


class SendableError(WireError):
    """An invalid frame or a refused request. The message reveals no data, so it may be sent to the other side."""


@contextmanager
def make_errors_sendable() -> Iterator[None]:
    """Turn an InputError raised in the block into a SendableError, whose message may be sent to the other side."""
    try:
        yield
    except InputError as error:
        raise SendableError(error.message, hint=error.hint) from None


class FrameKind(IntEnum):
    """The kinds of frames.

    A site answers HELLO with WELCOME, WORK and WORK_ANEW with UPLOAD, SECURE with SECURED, and FINISH with REPORT.
    It may answer each of them with REFUSAL. WORK_ANEW asks for the same as WORK, but the site first forgets all earlier
    broadcasts of the run.
    """

    HELLO = 1  # down: the plan of a run
    WELCOME = 2  # up: the site takes part
    WORK = 3  # down: a broadcast, from which the site does the local work of one exchange
    UPLOAD = 4  # up: the result of that work
    FINISH = 5  # down: the last broadcast, for the site to evaluate and keep
    REPORT = 6  # up: the site's report of its results
    REFUSAL = 7  # up, in place of any answer: a reason that tells nothing about the site's data
    SECURE = 8  # down: one step of a secure sum
    SECURED = 9  # up: the answer to that step
    WORK_ANEW = 10  # down: as WORK; the server does not know which earlier messages the site has, and assumes none


@dataclass(frozen=True)
class Frame:
    """The bytes that one Flower message carries: a header and a payload."""

    kind: FrameKind
    run: bytes  # 8 bytes: see `make_run_tag`
    round_number: int
    exchange: int
    payload: bytes

    def encode(self) -> bytes:
        """Encode the frame as bytes: the header, then the payload."""
        header = (MAGIC, VERSION, self.kind, self.run, self.round_number, self.exchange, len(self.payload))
        return _HEADER.pack(*header) + self.payload


def make_run_tag(name: str) -> bytes:
    """Return the 8 bytes that identify the run of this name in the header of frames."""
    return hashlib.sha256(name.encode()).digest()[:8]


@add_default_hint(SAME_VERSION)
def decode_frame(data: bytes, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Frame:
    """Decode a frame; raise SendableError if the bytes are not a valid frame of at most `limit_bytes`."""
    if len(data) > limit_bytes:
        raise SendableError(f"expected a frame of at most {limit_bytes} bytes, found: {len(data)}")
    if len(data) < HEADER_BYTES:
        raise SendableError(f"expected a frame with a header of {HEADER_BYTES} bytes, found: {len(data)}")
    magic, version, kind, run, round_number, exchange, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise SendableError(f"expected a fedlog frame, found bytes that begin with: {magic.hex()}")
    if version != VERSION:
        raise SendableError(f"expected frame version {VERSION}, found: {version}")
    if kind not in FrameKind.__members__.values():
        raise SendableError(f"expected a frame kind from {min(FrameKind)} to {max(FrameKind)}, found: {kind}")
    if length != len(data) - HEADER_BYTES:
        raise SendableError(f"expected a frame with a payload of {length} bytes, found: {len(data) - HEADER_BYTES}")
    return Frame(FrameKind(kind), run, round_number, exchange, data[HEADER_BYTES:])


@add_default_hint(SAME_VERSION)
def check_reply(request: Frame, answer: Frame, kind: FrameKind) -> Frame:
    """Return the answer; raise SendableError unless it is of this kind and of the request's run, round and exchange."""
    if answer.kind is not kind:
        raise SendableError(f"expected an answer of kind {kind.name}, found: {answer.kind.name}")
    if answer.run != request.run:
        raise SendableError(f"expected an answer with run tag {request.run.hex()}, found tag: {answer.run.hex()}")
    expected, found = ((f.round_number, f.exchange) for f in (request, answer))
    if expected != found:
        raise SendableError(f"expected an answer for round and exchange {expected}, found: {found}")
    return answer


def wrap_frame(frame: Frame) -> RecordDict:
    """Put the frame into the content of a Flower message."""
    return RecordDict({RECORD: ConfigRecord({ENTRY: frame.encode()})})


@add_default_hint(SAME_VERSION)
def unwrap_frame(message: Message) -> Frame:
    """Take the frame out of a Flower message; raise SendableError if the message holds anything else."""
    content = message.content
    record = content.get(RECORD) if set(content) == {RECORD} else None
    if not isinstance(record, ConfigRecord) or set(record) != {ENTRY}:
        raise SendableError(
            f"expected a Flower message with one Flower record {RECORD}, which has one entry {ENTRY}, found records: "
            f"{sorted(content)}"
        )
    data = record[ENTRY]
    if not isinstance(data, bytes):
        raise SendableError(f"expected the bytes of a frame, found: {type(data).__name__}")
    return decode_frame(data)


@dataclass(frozen=True)
class SumAnnouncement:
    """The server's announcement of a secure sum: `session` and `number`, which identify the sum, and its sites.

    The server puts it before the broadcast in a WORK frame. The rules of the sum are in the plan, the sites' keys in
    the roster.
    """

    session: bytes  # 16 random bytes, the same for all sums of a run
    number: int  # of the sum in its session; no number is used twice
    members: tuple[str, ...]

    def prepend_to(self, broadcast: bytes) -> bytes:
        """Encode the payload of a WORK frame: this announcement, then the broadcast."""
        text = json.dumps({**asdict(self), "session": self.session.hex()}).encode()
        return len(text).to_bytes(_LENGTH, "little") + text + broadcast


@dataclass(frozen=True)
class _AnnouncementFields:
    """The JSON fields of a `SumAnnouncement`, with bounds that are checked before any privacy is spent."""

    session: Annotated[str, Meta(min_length=2 * SESSION_BYTES, max_length=2 * SESSION_BYTES)]  # as hex digits
    number: Annotated[int, Meta(ge=0, le=LARGEST_SUM_NUMBER)]
    members: Annotated[tuple[str, ...], Meta(max_length=MOST_MEMBERS)]


@add_default_hint(SAME_VERSION)
def read_announcement(payload: bytes) -> tuple[SumAnnouncement, bytes]:
    """Split the payload of a WORK frame into the announcement of a secure sum and the broadcast.

    Raise SendableError if the payload does not begin with an announcement.
    """
    length = int.from_bytes(payload[:_LENGTH], "little")
    try:
        facts = msgspec.convert(parse_json(payload[_LENGTH : _LENGTH + min(length, 2**20)]), _AnnouncementFields)
        announcement = SumAnnouncement(bytes.fromhex(facts.session), facts.number, facts.members)
    except (ValueError, msgspec.ValidationError) as error:
        raise SendableError(f"expected the announcement of a secure sum, found: {error}"[:200]) from None
    return announcement, payload[_LENGTH + length :]
