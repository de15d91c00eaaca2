"""A site's side of a secure sum. Its state between messages is on disk, and each step is answered only once.

A WORK frame announces a sum: the site does its local work, stores the (noisy) statistics and sends its keys. Four
SECURE frames follow. The files of a sum are in the folder `secure/` of the run's state, which only its owner can read.
A step is marked as answered before the answer is sent, so that a restart never makes a site answer twice.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedlog.engine.protocol.secure_sums import choose_encoding, encode_for_sum, make_sum_terms
from fedlog.files.durable import PRIVATE_MODE, write_file
from fedlog.flower.folders.keys import index_member_keys, load_signing_key, read_own_roster
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.frame import Frame, SendableError, SumAnnouncement, read_announcement
from fedlog.flower.protocol.plan import SecureSumRules
from fedlog.flower.site.run_state import RunState
from fedlog.privacy.protection import Protection
from fedlog.privacy.secagg.answered_steps import AnsweredStepsOnDisk
from fedlog.privacy.secagg.client import AgreedState, KeysState, MaskedState, SharesState, SumClient, answer_step
from fedlog.privacy.secagg.crypto import SigningIdentity
from fedlog.privacy.secagg.encoding import decode, encode
from fedlog.privacy.secagg.fixed_point import pack_words, unpack_words
from fedlog.privacy.secagg.terms import Step
from fedlog.wire.message import Message, make_contribution

SAME_ROSTER = "the server and all sites need the same roster: `fedlog federate roster DIR NAME=KEY ...`"
STATES: dict[Step, Any] = {
    Step.SHARES: KeysState,
    Step.MASKED: SharesState,
    Step.AGREE: MaskedState,
    Step.UNMASK: AgreedState,
}


@dataclass(frozen=True)
class SiteSecureSums:
    """The site's side of the secure sums of a run; its state between messages is on disk."""

    folder: SiteFolder
    secure: SecureSumRules
    protection: Protection | None
    state: RunState

    @property
    def _folder(self) -> Path:
        return self.state.path / "secure"

    @property
    def _answered_steps(self) -> AnsweredStepsOnDisk:
        return AnsweredStepsOnDisk(self._folder / "used")

    def read_and_check_announcement(self, payload: bytes) -> tuple[SumAnnouncement, bytes]:
        """Read the announcement of a secure sum and the broadcast from the payload of a WORK frame.

        Raise SendableError if the announcement is unusable, before any work is done and any privacy is spent.
        """
        announcement, broadcast = read_announcement(payload)
        terms = self._make_client(announcement, coordinates=1).terms
        if self._answered_steps.is_answered(terms.round_name, Step.KEYS.name.lower()):
            raise SendableError(
                f"expected a new secure sum, found sum {announcement.number}, "
                "for which this site has sent its keys before"
            )
        return announcement, broadcast

    def store_vector_and_make_keys(
        self, announcement: SumAnnouncement, message: Message, round_and_exchange: tuple[int, int]
    ) -> bytes:
        """Store the statistics of `message` as the vector that this site adds to the sum; make keys for this sum.

        Return the encoded public keys.
        """
        # In single precision, as in the simulator, so that both encode the same message in the same way.
        arrays = tuple(array.float() if array.is_floating_point() else array for array in message.arrays)
        contribution = make_contribution(replace(message, arrays=arrays))
        if self.protection is not None:
            contribution = self.protection.convert_to_feature_units(contribution)
        vector = encode_for_sum(contribution, self.protection, len(announcement.members))
        client = self._make_client(announcement, len(vector))
        following, keys = client.make_keys()
        shutil.rmtree(self._folder / "sum", ignore_errors=True)
        self._store_file("vector", pack_words(vector, client.terms.value_bytes))
        opened = {
            "opening": announcement.prepend_to(b"").hex(),
            "step": list(round_and_exchange),
            "coordinates": len(vector),
        }
        self._store_file("opening", json.dumps(opened).encode())
        self._store_file("state", bytes([Step.SHARES]) + encode(following))
        return keys

    def answer_step(self, request: Frame) -> bytes:
        """Answer a SECURE frame, which asks for one step of the sum; store the site's new state before returning."""
        try:
            opened = json.loads((self._folder / "sum" / "opening").read_bytes())
            announcement, _ = read_announcement(bytes.fromhex(opened["opening"]))
            kept = (self._folder / "sum" / "state").read_bytes()
        except FileNotFoundError:
            raise SendableError("expected the announcement of a secure sum first, found a later step") from None
        expected, found = tuple(opened["step"]), (request.round_number, request.exchange)
        if expected != found:
            raise SendableError(f"expected a step of the secure sum of round and exchange {expected}, found: {found}")
        if not request.payload:
            raise SendableError(f"expected a step of the secure sum of round and exchange {expected}, found no payload")
        if request.payload[0] not in STATES or kept[0] != request.payload[0]:
            raise SendableError(f"expected step {kept[0]} of the secure sum, found: {request.payload[0]}")
        step = Step(request.payload[0])
        client = self._make_client(announcement, int(opened["coordinates"]))
        path = self._folder / "sum" / "vector"
        vector = (
            unpack_words(path.read_bytes(), client.terms.value_bytes) if step is Step.MASKED else unpack_words(b"", 1)
        )
        following, reply = answer_step(client, step, decode(STATES[step], kept[1:]), request.payload[1:], vector)
        if step is Step.UNMASK or following is None:
            shutil.rmtree(self._folder / "sum")
            return reply
        self._store_file("state", bytes([step + 1]) + encode(following))  # type: ignore[arg-type]
        if step is Step.MASKED:
            path.unlink()  # it is sent, and must never be sent again
        return reply

    def _make_client(self, announcement: SumAnnouncement, coordinates: int) -> SumClient:
        """Make this site's client of the sum; raise SendableError if the plan or the roster forbids the sum."""
        roster = read_own_roster(self.folder)
        name = self.folder.read_config().name
        members = announcement.members
        if name not in members:
            raise SendableError(f"expected this site among the {len(members)} sites of a secure sum, found only others")
        if len(set(members)) != len(members):
            raise SendableError(f"expected {len(members)} different sites in a secure sum, found: {len(set(members))}")
        if unknown := set(members) - set(roster):
            raise SendableError(
                f"expected every site of a secure sum in this site's roster, sites missing: {len(unknown)}",
                hint=SAME_ROSTER,
            )
        if len(members) > self.secure.sites:
            raise SendableError(
                f"expected at most {self.secure.sites} sites in a sum, found: {len(members)}", hint=SAME_ROSTER
            )
        value_bytes = choose_encoding(self.protection).value_bytes
        terms = make_sum_terms(
            announcement.session,
            announcement.number,
            index_member_keys(roster, members),
            self.secure.honest,
            coordinates,
            value_bytes,
        )
        identity = SigningIdentity(sorted(roster).index(name), load_signing_key(self.folder))
        return SumClient(terms, identity, self._answered_steps, os.urandom)

    def _store_file(self, name: str, content: bytes) -> None:
        folder = self._folder / "sum"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(folder / name, content, PRIVATE_MODE)
