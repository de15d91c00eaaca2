"""Secure sums in the simulator: all messages of the protocol are made and counted, and the server gets only the sum.

A turn is a request to all clients and their replies. With its last reply in a sum, a client also sends its keys for the
next sum if the same clients take part in both. The next sum then needs four turns instead of five. Clients that did not
send their last reply are asked for their keys in one more turn.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from fedlog.algorithms.interface import Exchange
from fedlog.core.keys import Key
from fedlog.engine.protocol.checkpoint import SumsProgress
from fedlog.engine.protocol.secure_sums import choose_encoding, decode_sum, encode_for_sum, make_sum_terms
from fedlog.engine.protocol.server import RefusedUpload, Server
from fedlog.errors import InputError
from fedlog.privacy.protection import Protection
from fedlog.privacy.secagg.answered_steps import AnsweredStepsInMemory
from fedlog.privacy.secagg.client import KeysState, SumClient
from fedlog.privacy.secagg.crypto import SharedSignatureChecks, SigningIdentity
from fedlog.privacy.secagg.encoding import RoundFailedError
from fedlog.privacy.secagg.simulated_round import Mail, RoundObservations, run_secure_round
from fedlog.privacy.secagg.terms import Step, Terms
from fedlog.settings.promise import choose_fewest_honest_survivors
from fedlog.wire.codec import find_codec
from fedlog.wire.ledger import Direction, Ledger
from fedlog.wire.message import Contribution

# Workers hand over uploads in this codec. Masked words are sent instead, so rounding by another codec would be useless.
UPLOAD_CODEC = find_codec("f32")


@dataclass(frozen=True)
class SimulatedDropouts:
    """Lets each client stop answering with probability `rate`, at a random step of a secure sum."""

    rate: float
    key: Key

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise InputError(
                f"the dropout rate must be at least 0 and below 1, found: {self.rate}", hint="--dropout-rate 0.1"
            )

    def draw(self, sum_number: int, members: Sequence[int]) -> dict[int, Step]:
        """The clients that drop out of this sum, each with the first step that it does not answer."""
        draws = self.key.child("sum", sum_number).numpy()
        gone = draws.random(len(members)) < self.rate
        steps = draws.integers(len(Step), size=len(members))
        return {n: Step(int(step)) for n, out, step in zip(members, gone, steps, strict=True) if out}


@dataclass
class SecureSums:
    """Computes the secure sums of a run; a sum fails if too few clients stay to its end."""

    protection: Protection | None = None
    honest: int | None = None  # how many clients must stay; None: more than half
    dropouts: SimulatedDropouts | None = None
    # Not drawn from the run's seed: whoever knows it could remove the masks. Masks cancel, so results do not change.
    session: bytes = field(default_factory=lambda: os.urandom(16))
    sums_made: int = 0
    turns: int = 0  # since the last `read_and_reset_counts`
    survivors: tuple[int, ...] = ()  # of the last sum; none if it failed
    _identities: dict[int, SigningIdentity] = field(default_factory=dict)
    _answered: dict[int, AnsweredStepsInMemory] = field(default_factory=dict)
    _early: dict[int, tuple[KeysState, bytes]] = field(default_factory=dict)
    _early_for: Terms | None = None

    def receive_uploads(
        self,
        server: Server,
        round_number: int,
        exchange: Exchange,
        sent: Sequence[tuple[int, bytes]],
        following: Sequence[int],
    ) -> None:
        """Update the server's state with the secure sum of these uploads.

        If too many clients drop out, the server keeps its state and records a refusal. `following` are the clients
        that take part in the next sum.
        """
        lifted = [(index, server.read_contribution(UPLOAD_CODEC.decode(blob))) for index, blob in sent]
        try:
            server.apply_sum(round_number, exchange, self.sum_uploads(round_number, lifted, server.ledger, following))
        except RoundFailedError as error:
            server.refusals.append((round_number, RefusedUpload("secure sum", error.message)))
            server.kept_state = True

    def get_progress(self) -> SumsProgress:
        """The number of sums so far, and the clients that have sent keys for the next sum, for a checkpoint."""
        if self._early_for is None or not self._early:
            return SumsProgress(self.sums_made)
        members = tuple(sorted(self._early_for.roster))
        return SumsProgress(self.sums_made, tuple(self._early), members, self._early_for.coordinates)

    def resume_from(self, progress: SumsProgress | None, folder: Path) -> None:
        """Continue after the last sum in the folder's checkpoint.

        A checkpoint has no secrets, so clients that had sent keys for the next sum make new keys. The bits of
        the new keys are not counted, because those of the old keys already are.
        """
        if progress is None:
            raise InputError(
                f"the checkpoint in {folder} cannot be used: it does not say how many secure sums were made",
                hint="start the run anew",
            )
        # A new session, so that no key or mask of the interrupted run is used twice.
        self.session = os.urandom(16)
        self.sums_made, self.turns, self.survivors, self._early = progress.made, 0, (), {}
        if progress.ahead:
            value_bytes = choose_encoding(self.protection).value_bytes
            self._make_early_keys(
                self._make_terms(list(progress.members), progress.coordinates, value_bytes), progress.ahead
            )

    def read_and_reset_counts(self) -> dict[str, float]:
        """Return the number of turns since the last call, and how many clients stayed to the end of the last sum.

        A turn is a request to all clients and their replies.
        """
        turns, self.turns = self.turns, 0
        return {"secure_sum_turns": float(turns), "secure_sum_survivors": float(len(self.survivors))}

    def sum_uploads(
        self,
        round_number: int,
        uploads: Sequence[tuple[int, Contribution]],
        ledger: Ledger,
        following: Sequence[int] = (),
    ) -> Contribution:
        """The secure sum of these contributions (client number, contribution), as the server gets it.

        RoundFailedError if too many clients drop out. `following` are the clients that take part in the next sum.
        """
        encoding = choose_encoding(self.protection)
        shapes = [tuple(array.shape) for array in uploads[0][1].arrays]
        vectors = {number: encode_for_sum(upload, self.protection, len(uploads)) for number, upload in uploads}
        members = sorted(vectors)
        terms = self._make_terms(members, sum(prod(shape) for shape in shapes), encoding.value_bytes)
        if self._early and self._early_for is not None and self._early_for.digest != terms.digest:
            # The keys were sent for a sum of another shape, so they and its number cannot be used.
            self.sums_made += 1
            self._early = {}
            terms = replace(terms, round=self.sums_made)
        early = self._early
        silent = {} if self.dropouts is None else self.dropouts.draw(self.sums_made, members)
        book, observed = _CountingCourier(ledger, round_number, silent), RoundObservations()
        self._early, self.survivors = {}, ()
        self.sums_made += 1
        try:
            found = run_secure_round(terms, self._make_clients(terms, members), vectors, book, observed, early)
        finally:
            self.turns += observed.turns
        if sorted(following) == members:
            book(Step.KEYS, Direction.UP, self._make_early_keys(terms.make_next_terms(), observed.helped))
        self.survivors = found.survivors
        return decode_sum(found, self.protection, shapes)

    def _make_early_keys(self, following: Terms, clients: Sequence[int]) -> Mail:
        """Make and store these clients' keys for the next sum, and return the messages that carry the keys."""
        self._early_for = following
        self._early = {n: client.make_keys() for n, client in self._make_clients(following, clients).items()}
        return [(number, blob) for number, (_, blob) in self._early.items()]

    def _make_terms(self, members: list[int], coordinates: int, value_bytes: int) -> Terms:
        for number in members:
            if number not in self._identities:
                self._identities[number] = SigningIdentity.create(number, os.urandom)
                self._answered[number] = AnsweredStepsInMemory()
        honest = self.honest or choose_fewest_honest_survivors(None, len(members))
        roster = {number: self._identities[number].public_key for number in members}
        return make_sum_terms(self.session, self.sums_made, roster, honest, coordinates, value_bytes)

    def _make_clients(self, terms: Terms, members: Iterable[int]) -> Mapping[int, SumClient]:
        check = SharedSignatureChecks().check_once
        return {n: SumClient(terms, self._identities[n], self._answered[n], os.urandom, check) for n in members}


@dataclass(frozen=True)
class _CountingCourier:
    """Delivers messages, except from and to clients that dropped out, and counts bits by step of the protocol."""

    ledger: Ledger
    round_number: int
    silent: Mapping[int, Step]

    def __call__(self, step: Step, direction: str, mail: Mail) -> Iterable[tuple[int, bytes]]:
        heard = [(number, blob) for number, blob in mail if step < self.silent.get(number, len(Step))]
        # The server's messages are sent and counted even if the client does not receive them.
        for _, blob in heard if direction == Direction.UP else mail:
            self.ledger.count(self.round_number, Direction(direction), f"secure {step.name.lower()}", blob)
        return heard
