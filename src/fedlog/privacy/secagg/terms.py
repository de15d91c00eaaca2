"""The terms of a secure sum: parameters on which all parties agree before it starts; unsafe ones are refused."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

from fedlog.errors import InputError
from fedlog.privacy.secagg.encoding import encode


class Step(IntEnum):
    """The five steps of a secure sum, in order; in each step a client sends one message and receives one."""

    KEYS = 0
    SHARES = 1
    MASKED = 2
    AGREE = 3
    UNMASK = 4


FEWEST = 3  # clients in a sum: in a sum of two, each could subtract its own vector and learn the other's


@dataclass(frozen=True)
class Terms:
    """The parameters of one round of a secure sum, agreed before it starts; messages under other terms are invalid."""

    session: bytes
    """16 random bytes for the whole run."""
    round: int
    roster: Mapping[int, bytes]
    """Each client's number and its long-term Ed25519 public key, from a source other than the server."""
    threshold: int
    """The number of clients that are needed to unmask the sum."""
    honest: int
    """The fewest honest clients that do not drop out; with fewer, the round fails before anything is unmasked."""
    corrupted: int
    """The largest number of clients that share what they see with the server."""
    coordinates: int
    value_bytes: int

    def __post_init__(self) -> None:
        n = len(self.roster)
        if (
            len(self.session) != 16
            or not 0 <= self.round < 2**63
            or self.coordinates < 1
            or not 1 <= self.value_bytes <= 7
        ):
            raise InputError(
                "a secure sum needs a session of 16 bytes, a round of 0 or more, at least one coordinate and 1 to 7 "
                f"bytes per value, found: {self}"
            )
        for member, key in self.roster.items():
            if not 0 <= member < 2**32 - 1 or len(key) != 32:
                raise InputError(
                    "the roster must map client numbers from 0 to 2^32 - 2 to Ed25519 keys of 32 bytes, "
                    f"found: number {member} with a key of {len(key)} bytes"
                )
        if self.honest < FEWEST:
            raise InputError(
                f"a secure sum needs at least {FEWEST} honest clients that do not drop out, found: {self.honest}",
                hint="let more clients take part: in a sum of two, each could compute the other's vector",
            )
        if self.corrupted < 0 or 2 * self.threshold <= n + self.corrupted or self.threshold > n:
            raise InputError(
                f"the threshold must lie above ({n} clients + {self.corrupted} corrupted) / 2 and be at most {n}, "
                f"found: {self.threshold}",
                hint="use `compute_smallest_safe_threshold`; with less, a server could unmask two different sums",
            )
        if self.fewest_survivors > n:
            raise InputError(
                f"the honest clients that do not drop out and the corrupted clients together must be at most the {n} "
                f"clients on the roster, found: {self.honest} honest and {self.corrupted} corrupted",
                hint="lower `honest` or `corrupted`, or let more clients take part",
            )

    @property
    def fewest_survivors(self) -> int:
        """The fewest survivors with which a round goes on: the larger of the threshold and `honest + corrupted`."""
        return max(self.threshold, self.honest + self.corrupted)

    @cached_property
    def digest(self) -> bytes:
        """The 32-byte digest of the terms, which is different in every round."""
        return hashlib.sha256(b"fedlog secagg 1\0" + encode(self)).digest()

    @property
    def round_name(self) -> str:
        """The name of this round in the list of steps that a client has answered."""
        return f"{self.session.hex()}-{self.round}"

    def make_next_terms(self) -> Terms:
        """Make the terms of the next round, so that clients can send their keys for it ahead of time."""
        return replace(self, round=self.round + 1)


def compute_smallest_safe_threshold(clients: int, corrupted: int) -> int:
    """Return the smallest threshold at which no server can unmask two sums of one round."""
    return math.floor((clients + corrupted) / 2) + 1
