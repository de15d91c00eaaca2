"""A secure sum in the simulator: every message of the protocol is made, booked and read, and the server gets the sum.

Lifting runs at the client, so this serves every method whose upload is a sum. What a client puts in cannot be checked
under masks; with private statistics a value out of range wraps, without privacy it is an error at its client.

The keys of a sum come with the last replies of the one before, where the same clients take part in both: four turns
instead of five. A client that was not there to reply is asked for its keys first, in a turn more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from pathlib import Path

import numpy as np
import torch

from fedlog.algorithms.shape import Exchange
from fedlog.core.keys import Key
from fedlog.engine.protocol.checkpoint import SumsPosition
from fedlog.engine.protocol.server import Refusal, Server
from fedlog.errors import InputError
from fedlog.privacy.protection import Protection, split_as
from fedlog.privacy.secagg.client import Advertised, SumClient
from fedlog.privacy.secagg.crypto import SigningIdentity
from fedlog.privacy.secagg.encoding import RoundFailedError
from fedlog.privacy.secagg.fixed_point import FixedPoint, Words
from fedlog.privacy.secagg.rehearsal import Mail, RoundTraffic, run_round
from fedlog.privacy.secagg.server import SecureSum
from fedlog.privacy.secagg.terms import Step, Terms, usual_threshold
from fedlog.privacy.secagg.used_steps import UsedStepsInMemory
from fedlog.settings.promise import count_survivors
from fedlog.wire.codec import codec
from fedlog.wire.ledger import Direction, Ledger
from fedlog.wire.message import Contribution

# What enters a secure sum is masked words, not a message of the codec: between the local work and the words nothing is
# rounded that need not be.
IN_A_SUM = codec("f32")
# For uploads without privacy, e.g. weights times records: sums below 2^31 with a step of 2^-24.
PLAIN = FixedPoint(grid=2.0**-24, value_bytes=7)


def encoding_of(protection: Protection | None) -> FixedPoint:
    """The fixed-point encoding of values in a secure sum."""
    return PLAIN if protection is None else protection.encoding


def words_of(upload: Contribution, protection: Protection | None, parties: int) -> Words:
    """A lifted upload as it enters a secure sum; without privacy, InputError where the sum could leave its range."""
    values = np.concatenate([array.reshape(-1).numpy() for array in upload.arrays])
    encoding = encoding_of(protection)
    return encoding.to_words_checked(values, parties) if protection is None else encoding.to_words(values)


def read_sum(found: SecureSum, protection: Protection | None, shapes: Sequence[tuple[int, ...]]) -> Contribution:
    """The values of a secure sum, as arrays of these shapes."""
    arrays = split_as(torch.from_numpy(encoding_of(protection).from_words(found.total)), shapes)
    noise = 0.0 if protection is None else protection.mechanism.client_std
    return Contribution(arrays, len(found.survivors), noise * sqrt(len(found.survivors)))


def sum_terms(
    session: bytes, number: int, roster: Mapping[int, bytes], honest: int, coordinates: int, value_bytes: int
) -> Terms:
    """The terms of one sum, with no client taken to be corrupted and the lowest threshold that is safe."""
    return Terms(
        session=session,
        round=number,
        roster=roster,
        threshold=max(honest, usual_threshold(len(roster), 0)),
        honest=honest,
        corrupted=0,
        coordinates=coordinates,
        value_bytes=value_bytes,
    )


@dataclass(frozen=True)
class Dropouts:
    """Clients that fall silent during a sum: each with probability `rate`, at a random step."""

    rate: float
    key: Key

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise InputError(
                f"the rate of dropouts must be at least 0 and below 1: {self.rate}", hint="--dropout-rate 0.1"
            )

    def draw(self, sum_number: int, members: Sequence[int]) -> dict[int, Step]:
        """The clients that drop out, each with the first step at which it is silent."""
        draws = self.key.child("sum", sum_number).numpy()
        gone = draws.random(len(members)) < self.rate
        steps = draws.integers(len(Step), size=len(members))
        return {n: Step(int(step)) for n, out, step in zip(members, gone, steps, strict=True) if out}


@dataclass
class SecureSums:
    """The secure sums of one run, and the honest survivors each of them needs."""

    protection: Protection | None = None
    honest: int | None = None
    dropouts: Dropouts | None = None
    # The masks cancel, so no recorded number depends on these draws, and a seed would make the masks worthless.
    session: bytes = field(default_factory=lambda: os.urandom(16))
    sums_made: int = 0
    turns: int = 0  # since someone looked
    survivors: tuple[int, ...] = ()  # of the last sum; none if it failed
    _identities: dict[int, SigningIdentity] = field(default_factory=dict)
    _used: dict[int, UsedStepsInMemory] = field(default_factory=dict)
    _early: dict[int, tuple[Advertised, bytes]] = field(default_factory=dict)
    _early_for: Terms | None = None

    def receive(
        self,
        server: Server,
        round_number: int,
        exchange: Exchange,
        sent: Sequence[tuple[int, bytes]],
        following: Sequence[int],
    ) -> None:
        """Move the server's state by the sum of these uploads; where too few clients survive, all stays as it was."""
        lifted = [(index, server.lift_upload(IN_A_SUM.decode(blob))) for index, blob in sent]
        try:
            server.take(round_number, exchange, self.total(round_number, lifted, server.ledger, following))
        except RoundFailedError as error:
            server.refusals.append((round_number, Refusal("secure sum", error.message)))
            server.kept_state = True

    def position(self) -> SumsPosition:
        """How many sums were made and whose keys came ahead, for a checkpoint."""
        if self._early_for is None or not self._early:
            return SumsPosition(self.sums_made)
        members = tuple(sorted(self._early_for.roster))
        return SumsPosition(self.sums_made, tuple(self._early), members, self._early_for.coordinates)

    def go_on_from(self, position: SumsPosition | None, folder: Path) -> None:
        """Continue with the sum that follows the folder's checkpoint.

        Secrets are in no checkpoint, so the clients that sent keys ahead make them anew. Their bits are booked already.
        """
        if position is None:
            raise InputError(
                f"no usable checkpoint in {folder}: it does not say how many secure sums were made",
                hint="start the run anew",
            )
        # A session of its own: no key and no mask of the interrupted run serves twice.
        self.session = os.urandom(16)
        self.sums_made, self.turns, self.survivors, self._early = position.made, 0, (), {}
        if position.ahead:
            value_bytes = encoding_of(self.protection).value_bytes
            self._keys_ahead(self._terms(list(position.members), position.coordinates, value_bytes), position.ahead)

    def take_figures(self) -> dict[str, float]:
        """The turns since the last call, and how many clients survived the last sum."""
        turns, self.turns = self.turns, 0
        return {"secure_sum_turns": float(turns), "secure_sum_survivors": float(len(self.survivors))}

    def total(
        self,
        round_number: int,
        uploads: Sequence[tuple[int, Contribution]],
        ledger: Ledger,
        following: Sequence[int] = (),
    ) -> Contribution:
        """The sum of the lifted uploads, as the server learns it; RoundFailedError if too few clients survive.

        `following`: who will take part in the sum after this one.
        """
        encoding = encoding_of(self.protection)
        shapes = [tuple(array.shape) for array in uploads[0][1].arrays]
        vectors = {number: words_of(upload, self.protection, len(uploads)) for number, upload in uploads}
        members = sorted(vectors)
        terms = self._terms(members, sum(prod(shape) for shape in shapes), encoding.value_bytes)
        if self._early and self._early_for is not None and self._early_for.digest != terms.digest:
            # Keys were sent ahead for a sum of another shape: that number is used up.
            self.sums_made += 1
            self._early = {}
            terms = replace(terms, round=self.sums_made)
        early = self._early
        silent = {} if self.dropouts is None else self.dropouts.draw(self.sums_made, members)
        book, traffic = _Booking(ledger, round_number, silent), RoundTraffic()
        self._early, self.survivors = {}, ()
        self.sums_made += 1
        try:
            found = run_round(terms, self._clients(terms, members), vectors, book, traffic, early)
        finally:
            self.turns += traffic.turns
        if sorted(following) == members:
            book(Step.KEYS, Direction.UP, self._keys_ahead(terms.next(), traffic.helped))
        self.survivors = found.survivors
        return read_sum(found, self.protection, shapes)

    def _keys_ahead(self, following: Terms, helpers: Sequence[int]) -> Mail:
        """Make and keep the keys for the next sum; they are sent with the last replies of this one."""
        self._early_for = following
        self._early = {n: client.advertise() for n, client in self._clients(following, helpers).items()}
        return [(number, blob) for number, (_, blob) in self._early.items()]

    def _terms(self, members: list[int], coordinates: int, value_bytes: int) -> Terms:
        for number in members:
            if number not in self._identities:
                self._identities[number] = SigningIdentity.new(number, os.urandom)
                self._used[number] = UsedStepsInMemory()
        honest = self.honest or count_survivors(None, len(members))
        roster = {number: self._identities[number].public for number in members}
        return sum_terms(self.session, self.sums_made, roster, honest, coordinates, value_bytes)

    def _clients(self, terms: Terms, members: Iterable[int]) -> Mapping[int, SumClient]:
        return {n: SumClient(terms, self._identities[n], self._used[n], os.urandom) for n in members}


@dataclass(frozen=True)
class _Booking:
    """A courier that drops messages from and to silent clients, and counts the bytes of the others by step."""

    ledger: Ledger
    round_number: int
    silent: Mapping[int, Step]

    def __call__(self, step: Step, direction: str, mail: Mail) -> Iterable[tuple[int, bytes]]:
        heard = [(number, blob) for number, blob in mail if step < self.silent.get(number, len(Step))]
        # What the server sends goes out whether anyone is there to hear it or not.
        for _, blob in heard if direction == Direction.UP else mail:
            self.ledger.book(self.round_number, Direction(direction), f"secure {step.name.lower()}", blob)
        return heard
