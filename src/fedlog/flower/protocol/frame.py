"""The content of a Flower message: a frame of bytes with a small header (its kind, its run) and a payload.

    frame = magic(4) version(1) kind(1) run(8) round(4) exchange(1) length(4) | payload

The payload of WORK and UPLOAD is an encoded message of the engine, and those bytes alone are the counted bits; the 23
bytes of the header belong to the transport. Flower would let a message hold many arrays, each with a header of its own.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from flwr.app import ConfigRecord, Message, RecordDict

from fedlog.errors import InputError
from fedlog.wire.codec import WireError

MAGIC = b"FLFR"
VERSION = 1
_HEADER = struct.Struct("<4sBB8sIBI")
HEADER_BYTES = _HEADER.size
DEFAULT_LIMIT_BYTES = 64 * 2**20
# The exchange number of FINISH, which no exchange of a method has.
FINISH_EXCHANGE = 255
RECORD = "fedlog"
ENTRY = "frame"


class FrameError(WireError):
    """Bytes that are no frame, or a frame of something else than what was expected."""


@contextmanager
def as_refusal() -> Iterator[None]:
    """Turn an InputError in the block into a FrameError: its message may be sent to the other side."""
    try:
        yield
    except InputError as error:
        raise FrameError(error.message) from None


class FrameKind(IntEnum):
    """The kinds of frames; requests go down, answers come up."""

    HELLO = 1  # down: the plan of a run
    WELCOME = 2  # up: the site takes part
    WORK = 3  # down: a broadcast, to do the local work of one exchange from
    UPLOAD = 4  # up: its outcome
    FINISH = 5  # down: the last broadcast, to evaluate and keep
    REPORT = 6  # up: what the site tells of its own results
    REFUSAL = 7  # up, in place of any answer: a reason without any content of the site's data
    SECURE = 8  # down: one step of a secure sum
    SECURED = 9  # up: its answer
    WORK_ANEW = 10  # down: as WORK, from a server that does not know which messages the site has and has sent


@dataclass(frozen=True)
class Frame:
    """The frame that one Flower message carries."""

    kind: FrameKind
    run: bytes  # 8 bytes: see `run_tag`
    round_number: int
    exchange: int
    payload: bytes

    def encode(self) -> bytes:
        """The bytes of the frame."""
        header = (MAGIC, VERSION, self.kind, self.run, self.round_number, self.exchange, len(self.payload))
        return _HEADER.pack(*header) + self.payload

    def reply(self, kind: FrameKind, payload: bytes) -> Frame:
        """A frame of the same run, round and exchange, with another kind and payload."""
        return Frame(kind, self.run, self.round_number, self.exchange, payload)


def run_tag(name: str) -> bytes:
    """The 8 bytes that stand for a run in its frames."""
    return hashlib.sha256(name.encode()).digest()[:8]


def decode_frame(data: bytes, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Frame:
    """The frame of these bytes; a FrameError says what is wrong with them."""
    if len(data) > limit_bytes:
        raise FrameError(f"expected at most {limit_bytes} bytes, found: {len(data)}")
    if len(data) < HEADER_BYTES:
        raise FrameError(f"expected a header of {HEADER_BYTES} bytes, found: {len(data)}")
    magic, version, kind, run, round_number, exchange, length = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise FrameError(f"expected a fedlog frame, found bytes that begin with: {magic.hex()}")
    if version != VERSION:
        raise FrameError(f"expected frame version {VERSION}, found: {version}")
    if kind not in FrameKind.__members__.values():
        raise FrameError(f"expected a frame kind from {min(FrameKind)} to {max(FrameKind)}, found: {kind}")
    if length != len(data) - HEADER_BYTES:
        raise FrameError(f"expected a payload of {length} bytes, found: {len(data) - HEADER_BYTES}")
    return Frame(FrameKind(kind), run, round_number, exchange, data[HEADER_BYTES:])


def expect_reply(request: Frame, answer: Frame, kind: FrameKind) -> Frame:
    """Return the answer; a FrameError if it is of another kind or belongs to another request."""
    if answer.kind is not kind:
        raise FrameError(f"expected a frame of kind {kind.name}, found: {answer.kind.name}")
    if answer.run != request.run:
        raise FrameError(f"expected a frame of run {request.run.hex()}, found: {answer.run.hex()}")
    expected, found = ((f.round_number, f.exchange) for f in (request, answer))
    if expected != found:
        raise FrameError(f"expected round and exchange {expected}, found: {found}")
    return answer


def to_content(frame: Frame) -> RecordDict:
    """The content of a Flower message."""
    return RecordDict({RECORD: ConfigRecord({ENTRY: frame.encode()})})


def from_content(message: Message) -> Frame:
    """The frame in a Flower message; a FrameError when it holds anything else."""
    content = message.content
    record = content.get(RECORD) if set(content) == {RECORD} else None
    if not isinstance(record, ConfigRecord) or set(record) != {ENTRY}:
        raise FrameError(f"expected one record {RECORD} with one entry {ENTRY}, found: {sorted(content)}")
    data = record[ENTRY]
    if not isinstance(data, bytes):
        raise FrameError(f"expected bytes, found: {type(data).__name__}")
    return decode_frame(data)
