"""The check-in: a site asks the server whether its clock is right and its key registered, and reports its state.

The report is one of a few fixed texts, so that no text written by a site can reach the server's log.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from fedlog.errors import InputError
from fedlog.files.json_text import parse_json
from fedlog.settings.fields import read_dataclass

CHECK_IN_PATH = "/fedlog/check-in"
LIMIT_BYTES = 1024
# Flower refuses a call if the clock of the caller is this far ahead of the server's clock, or behind it.
AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 305.0
NAMED_SECONDS = 5.0  # a smaller difference between two clocks may be the travel time of the message


class SiteState(StrEnum):
    """The states that a site can report to the server."""

    STARTS = "the site starts"
    STOPS = "stopped at the site"
    KILLED = "its SuperNode was killed, and is started again"
    ENDED = "its SuperNode ended, and is started again"
    GIVES_UP = "its SuperNode ends again and again; the site has stopped"
    NO_SPACE = "the disk of the site is full"
    CLOCK = "the clock of the site is off; the site has stopped"
    FOUND = "the site had lost the server, and found it again"


@dataclass(frozen=True)
class CheckInAnswer:
    """The server's answer to a check-in: whether the key is registered, and how far the site's clock is ahead."""

    registered: bool
    ahead_seconds: float  # how far the signed time is ahead of the server's clock; negative: behind, or slow to arrive

    def encode(self) -> bytes:
        """Encode the answer as JSON bytes."""
        return json.dumps(asdict(self)).encode()


def read_check_in_answer(payload: bytes) -> CheckInAnswer:
    """Decode the server's answer to a check-in; raise InputError if the bytes are not such an answer."""
    try:
        return read_dataclass(CheckInAnswer, parse_json(payload[:LIMIT_BYTES]), "the server's answer to a check-in")
    except ValueError:
        raise InputError(
            f"expected the server's answer to a check-in, found bytes that begin with: {payload[:40]!r}",
            hint="check the server's address: `server` in the file site.toml of the site's folder",
        ) from None


def encode_site_state(state: SiteState | None) -> bytes:
    """Encode the state that a site reports in a check-in; None (nothing to report) gives empty bytes."""
    return b"" if state is None else state.name.encode("ascii")


def read_site_state(payload: bytes) -> SiteState | None:
    """Decode the state that a site reports in a check-in; return None if the bytes are empty or unknown."""
    return SiteState.__members__.get(payload[:32].decode("ascii", "replace"))


def describe_clock(ahead_seconds: float) -> str | None:
    """Say how far a site's clock is off; return None if the travel time of the message may explain the difference."""
    if abs(ahead_seconds) <= NAMED_SECONDS:
        return None
    return f"{abs(ahead_seconds):.1f} s {'ahead of' if ahead_seconds > 0 else 'behind'} the server's"
