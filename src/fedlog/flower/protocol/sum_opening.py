"""The opening of a secure sum, which the server puts in front of the broadcast in a WORK frame."""

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
    """The server's facts about one secure sum; the others are in the plan and in each site's list of keys."""

    session: bytes
    number: int
    members: tuple[str, ...]

    def payload(self, broadcast: bytes) -> bytes:
        """The payload of a WORK frame: this opening, then the broadcast."""
        facts = {"session": self.session.hex(), "number": self.number, "members": list(self.members)}
        text = json.dumps(facts).encode()
        return len(text).to_bytes(_LENGTH, "little") + text + broadcast


def read_opening(payload: bytes) -> tuple[Opening, bytes]:
    """The opening in the payload of a WORK frame, and the broadcast after it; FrameError for any other content."""
    length = int.from_bytes(payload[:_LENGTH], "little")
    try:
        facts = json.loads(payload[_LENGTH : _LENGTH + min(length, 2**20)])
        opening = Opening(bytes.fromhex(facts["session"]), int(facts["number"]), tuple(map(str, facts["members"])))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise FrameError("expected the opening of a secure sum, found something else") from None
    # Checked here, before anything is spent: a number that is too large would fail after the release was counted.
    if len(opening.session) != SESSION_BYTES or not 0 <= opening.number < LARGEST_NUMBER:
        raise FrameError("expected a session of 16 bytes and a number in the opening of a secure sum, found others")
    if len(opening.members) > MOST_MEMBERS:
        raise FrameError(f"expected at most {MOST_MEMBERS} sites in the opening of a secure sum, found more")
    return opening, payload[_LENGTH + length :]
