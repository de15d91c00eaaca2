"""The check-in of a site at the gate, outside every run: is its clock right, is its key known, what is wrong with it?

What a site tells is one of a few words, so that no text of a site can reach the server's log.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from fedlog.errors import InputError
from fedlog.files.json_text import parse_json
from fedlog.settings.fields import read_exactly

CHECK_IN_PATH = "/fedlog/check-in"
LIMIT_BYTES = 1024
# Flower refuses a call that was signed more than this ahead of the server's clock, or that much behind it.
AHEAD_SECONDS, BEHIND_SECONDS = 5.0, 305.0
NAMED_SECONDS = 5.0  # a clock further off than this, to either side, is named


class News(StrEnum):
    """The news that a site tells the gate of itself."""

    STARTS = "the site starts"
    STOPS = "stopped at the site"
    KILLED = "its SuperNode was killed, and is started again"
    ENDED = "its SuperNode ended, and is started again"
    GIVES_UP = "its SuperNode ends again and again; the site has stopped"
    NO_SPACE = "the disk of the site is full"
    CLOCK = "the clock of the site is off; the site has stopped"
    FOUND = "the site had lost the server, and found it again"


@dataclass(frozen=True)
class Standing:
    """The gate's answer to a site."""

    registered: bool
    ahead_seconds: float  # of the site's clock before the server's, as its signature shows; the way there is part of it

    def encode(self) -> bytes:
        """The answer of the gate."""
        return json.dumps(asdict(self)).encode()


def read_standing(payload: bytes) -> Standing:
    """The gate's answer; InputError for anything else."""
    try:
        return read_exactly(Standing, parse_json(payload[:LIMIT_BYTES]), "the gate's answer to a check-in")
    except ValueError:
        raise InputError("expected the gate's answer to a check-in, found something else") from None


def encode_news(news: News | None) -> bytes:
    """The body of a check-in."""
    return b"" if news is None else news.name.encode("ascii")


def read_news(payload: bytes) -> News | None:
    """The news that a site tells; None for nothing, or for an unknown word."""
    return News.__members__.get(payload[:32].decode("ascii", "replace"))


def describe_clock(ahead_seconds: float) -> str | None:
    """In words, how far a clock is off; None for a difference that the travel time of a message explains."""
    if abs(ahead_seconds) <= NAMED_SECONDS:
        return None
    return f"{abs(ahead_seconds):.1f} s {'ahead of' if ahead_seconds > 0 else 'behind'} the server's"
