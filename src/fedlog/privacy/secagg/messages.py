"""The messages of a secure sum: signed envelopes from clients, and deliveries from the server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from fedlog.privacy.secagg.crypto import TAG_BYTES, SigningIdentity, check_signature
from fedlog.privacy.secagg.encoding import RefusalError, decode, encode
from fedlog.privacy.secagg.shamir import SHARE_BYTES
from fedlog.privacy.secagg.terms import Step, Terms

SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES


@dataclass(frozen=True)
class Envelope:
    """A client's message of one step, signed."""

    sender: int
    step: int
    body: bytes
    signature: bytes


@dataclass(frozen=True)
class PublicKeys:
    """Body of step keys: two one-round public keys, and a commitment to the seed of the client's own mask."""

    cipher: bytes
    mask: bytes
    commitment: bytes


@dataclass(frozen=True)
class SealedShares:
    """Body of step shares: for each other client, shares of both secrets that only it can open."""

    view: bytes
    """Digest of the keys the sender saw: clients with different lists must not be mixed."""
    sealed: dict[int, bytes]


@dataclass(frozen=True)
class MaskedVector:
    """Body of step masked."""

    view: bytes
    """Digest of the peers the sender masked against."""
    vector: bytes


@dataclass(frozen=True)
class UnmaskingShares:
    """Body of step unmask: shares of the mask keys of the dropped, and of the seeds of the survivors; never both."""

    mask_keys: dict[int, bytes]
    seeds: dict[int, bytes]


@dataclass(frozen=True)
class KeyList:
    """From the server: everyone's signed keys (encoded `PublicKeys`, then the signature)."""

    keys: dict[int, bytes]


@dataclass(frozen=True)
class Delivery:
    """From the server: the sealed shares meant for one client."""

    sealed: dict[int, bytes]


@dataclass(frozen=True)
class Survivors:
    """From the server: whose masked vectors arrived."""

    members: tuple[int, ...]


@dataclass(frozen=True)
class Agreements:
    """From the server: the survivors' signatures under the list of survivors."""

    signatures: dict[int, bytes]


def sign_envelope(terms: Terms, identity: SigningIdentity, step: Step, body: bytes) -> bytes:
    """The bytes of a signed message."""
    return encode(Envelope(identity.number, int(step), body, identity.sign(terms, step, body)))


def open_envelope(terms: Terms, step: Step, blob: bytes) -> Envelope:
    """The envelope, if it was signed by a client on the roster for this step of this round."""
    envelope = decode(Envelope, blob)
    if envelope.step != step:
        raise RefusalError(f"a message of step {envelope.step} came in step {int(step)} ({step.name.lower()})")
    check_signature(terms, step, envelope.sender, envelope.body, envelope.signature)
    return envelope


def check_keys(body: bytes) -> PublicKeys:
    """The public keys in a body of step keys."""
    keys = decode(PublicKeys, body)
    if not len(keys.cipher) == len(keys.mask) == len(keys.commitment) == 32:
        raise RefusalError("expected public keys and a commitment of 32 bytes each, found other lengths")
    return keys


def digest_keys(key_list: KeyList) -> bytes:
    """The digest of a list of keys."""
    return hashlib.sha256(b"keys" + encode(key_list)).digest()


def digest_peers(key_view: bytes, members: Iterable[int]) -> bytes:
    """The digest of the list of clients that shared their secrets, and of the keys they used."""
    return hashlib.sha256(b"peers" + key_view + encode(Survivors(tuple(sorted(members))))).digest()


def digest_survivors(peer_view: bytes, survivors: Survivors) -> bytes:
    """The digest that survivors sign: body of step agree."""
    return hashlib.sha256(b"survivors" + peer_view + encode(survivors)).digest()
