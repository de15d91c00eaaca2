"""The opening of a secure sum: what the server puts in front of the broadcast in a WORK frame."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fedlog.flower.protocol.frame import FrameError

_LENGTH = 4
SESSION_BYTES = 16
LARGEST_NUMBER = 2**63
MOST_MEMBERS = 10_000


@dataclass(frozen=True)
class Opening:
    """How the server opens a sum; all else follows from the plan and the site's own list of keys."""

    session: bytes
    number: int
    members: tuple[str, ...]

    def payload(self, broadcast: bytes) -> bytes:
        """The bytes of a WORK frame that opens this sum."""
        told = {"session": self.session.hex(), "number": self.number, "members": list(self.members)}
        text = json.dumps(told).encode()
        return len(text).to_bytes(_LENGTH, "little") + text + broadcast


def read_opening(payload: bytes) -> tuple[Opening, bytes]:
    """The opening of a sum, and the broadcast behind it; a FrameError for anything else."""
    length = int.from_bytes(payload[:_LENGTH], "little")
    try:
        told = json.loads(payload[_LENGTH : _LENGTH + min(length, 2**20)])
        opening = Opening(bytes.fromhex(told["session"]), int(told["number"]), tuple(map(str, told["members"])))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise FrameError("expected the opening of a secure sum, found something else") from None
    # Before anything is spent: a number that does not fit its field would fail after the release was counted.
    if len(opening.session) != SESSION_BYTES or not 0 <= opening.number < LARGEST_NUMBER:
        raise FrameError("expected the opening of a secure sum with a session and a number, found others")
    if len(opening.members) > MOST_MEMBERS:
        raise FrameError(f"expected at most {MOST_MEMBERS} sites in the opening of a secure sum, found more")
    return opening, payload[_LENGTH + length :]
