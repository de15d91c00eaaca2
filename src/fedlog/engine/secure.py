"""A secure sum in the simulator: every message of the protocol is made, booked and read, and the server gets the sum.

Lifting runs at the client, so this serves every method whose upload is a sum. What a client puts in cannot be checked
under masks; with private statistics a value out of range wraps, without privacy it is an error at its client.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod, sqrt

import numpy as np
import torch

from fedlog.errors import InputError
from fedlog.privacy.protection import Protection
from fedlog.privacy.secagg.client import Client
from fedlog.privacy.secagg.crypto import Identity
from fedlog.privacy.secagg.fixed_point import FixedPoint, Words
from fedlog.privacy.secagg.rehearsal import Mail, run_round
from fedlog.privacy.secagg.terms import TURNS_OF_FIRST_ROUND, Step, Terms, usual_threshold
from fedlog.privacy.secagg.used_steps import UsedStepsInMemory
from fedlog.wire.ledger import Direction, Ledger
from fedlog.wire.message import Contribution

# For uploads without privacy, e.g. weights times records: sums below 2^31 with a step of 2^-24.
PLAIN = FixedPoint(grid=2.0**-24, value_bytes=7)
FEWEST = 3


def smallest_survivors(clients: int) -> int:
    """How many clients of a round must survive, unless told otherwise: as few as are safe to unmask for."""
    if clients < FEWEST:
        raise InputError(
            f"a secure sum needs at least {FEWEST} clients in every round: {clients}",
            hint="the sum of two is known to each of the two",
        )
    return max(FEWEST, usual_threshold(clients, 0))


@dataclass
class SecureSums:
    """The secure sums of one run, and the honest survivors each of them needs."""

    protection: Protection | None = None
    honest: int | None = None
    # The masks cancel, so no recorded number depends on these draws, and a seed would make the masks worthless.
    session: bytes = field(default_factory=lambda: os.urandom(16))
    sums_made: int = 0
    turns = TURNS_OF_FIRST_ROUND

    def total(
        self, round_number: int, uploads: Sequence[tuple[int, Contribution]], ledger: Ledger
    ) -> tuple[Contribution, tuple[int, ...]]:
        """The sum of the lifted uploads as the server learns it, and whose uploads are in it."""
        encoding = PLAIN
        if self.protection is not None:
            assert self.protection.fixed_point is not None
            encoding = self.protection.fixed_point
        shapes = [tuple(array.shape) for array in uploads[0][1].arrays]
        vectors = {number: self._words(upload, encoding, len(uploads)) for number, upload in uploads}
        terms, clients = self._parties(sorted(vectors), sum(prod(shape) for shape in shapes), encoding.value_bytes)
        book = _Booking(ledger, round_number)
        found = run_round(terms, clients, vectors, book)
        self.sums_made += 1
        values = torch.from_numpy(encoding.from_words(found.total))
        parts = torch.split(values, [prod(shape) for shape in shapes])
        arrays = tuple(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True))
        noise = 0.0 if self.protection is None else self.protection.mechanism.client_std
        return Contribution(arrays, len(found.survivors), noise * sqrt(len(found.survivors))), found.survivors

    def _words(self, upload: Contribution, encoding: FixedPoint, parties: int) -> Words:
        values = np.concatenate([array.reshape(-1).numpy() for array in upload.arrays])
        return encoding.to_words_checked(values, parties) if self.protection is None else encoding.to_words(values)

    def _parties(self, members: list[int], coordinates: int, value_bytes: int) -> tuple[Terms, Mapping[int, Client]]:
        identities = {number: Identity.new(number, os.urandom) for number in members}
        honest = self.honest or smallest_survivors(len(members))
        terms = Terms(
            session=self.session,
            round=self.sums_made,
            roster={number: identity.public for number, identity in identities.items()},
            threshold=max(honest, usual_threshold(len(members), 0)),
            honest=honest,
            corrupted=0,
            coordinates=coordinates,
            value_bytes=value_bytes,
        )
        used = {number: UsedStepsInMemory() for number in members}
        return terms, {n: Client(terms, identities[n], used[n], os.urandom) for n in members}


@dataclass(frozen=True)
class _Booking:
    """A courier that delivers everything and counts its bytes, each step of the protocol under its own name."""

    ledger: Ledger
    round_number: int

    def __call__(self, step: Step, direction: str, mail: Mail) -> Iterable[tuple[int, bytes]]:
        for _, blob in mail:
            self.ledger.book(self.round_number, Direction(direction), f"secure {step.name.lower()}", blob)
        return mail
