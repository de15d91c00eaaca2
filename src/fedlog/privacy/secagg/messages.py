"""The messages of a secure sum: signed ones from the clients, and those from the server."""

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
    """A client's signed message of one step."""

    sender: int
    step: int
    body: bytes
    signature: bytes


@dataclass(frozen=True)
class PublicKeys:
    """The body of a message of step `keys`: two public keys for this round, and a commitment to the mask's seed."""

    cipher: bytes
    mask: bytes
    commitment: bytes


@dataclass(frozen=True)
class SealedShares:
    """The body of a message of step `shares`: for each other client, shares of both secrets that only it can open."""

    view: bytes
    """Digest of the list of keys that the sender got: all clients must have the same list."""
    sealed: dict[int, bytes]


@dataclass(frozen=True)
class MaskedVector:
    """The body of a message of step `masked`: the client's vector under its masks."""

    view: bytes
    """Digest of the peers for which the sender added masks."""
    vector: bytes


@dataclass(frozen=True)
class UnmaskingShares:
    """The body of a message of step `unmask`: shares of the dropouts' mask keys and of the survivors' seeds."""

    mask_keys: dict[int, bytes]
    seeds: dict[int, bytes]


@dataclass(frozen=True)
class KeyList:
    """From the server: the signed keys of all clients, each as encoded `PublicKeys` followed by the signature."""

    keys: dict[int, bytes]


@dataclass(frozen=True)
class SealedShareDelivery:
    """From the server: the sealed shares meant for one client."""

    sealed: dict[int, bytes]


@dataclass(frozen=True)
class Survivors:
    """From the server: the clients whose masked vectors arrived."""

    members: tuple[int, ...]


@dataclass(frozen=True)
class SurvivorSignatures:
    """From the server: the survivors' signatures under the list of survivors."""

    signatures: dict[int, bytes]


def sign_envelope(terms: Terms, identity: SigningIdentity, step: Step, body: bytes) -> bytes:
    """The bytes of a client's message, signed for this step of this round."""
    return encode(Envelope(identity.number, int(step), body, identity.sign(terms, step, body)))


def open_envelope(terms: Terms, step: Step, blob: bytes) -> Envelope:
    """The envelope in these bytes; `RefusalError` unless a client on the roster signed it for this step and round."""
    envelope = decode(Envelope, blob)
    if envelope.step != step:
        raise RefusalError(f"expected a message of step {int(step)} ({step.name.lower()}), found: step {envelope.step}")
    check_signature(terms, step, envelope.sender, envelope.body, envelope.signature)
    return envelope


def decode_keys(body: bytes) -> PublicKeys:
    """The public keys in the body of a message of step `keys`; `RefusalError` for wrong lengths."""
    keys = decode(PublicKeys, body)
    lengths = (len(keys.cipher), len(keys.mask), len(keys.commitment))
    if lengths != (32, 32, 32):
        raise RefusalError(f"expected two public keys and a commitment of 32 bytes each, found lengths: {lengths}")
    return keys


def digest_keys(key_list: KeyList) -> bytes:
    """The SHA-256 digest of a list of keys; clients compare it to see that all got the same list."""
    return hashlib.sha256(b"keys" + encode(key_list)).digest()


def digest_peers(keys_digest: bytes, members: Iterable[int]) -> bytes:
    """The SHA-256 digest of the list of clients that shared their secrets, and of the keys they used."""
    return hashlib.sha256(b"peers" + keys_digest + encode(Survivors(tuple(sorted(members))))).digest()


def digest_survivors(peers_digest: bytes, survivors: Survivors) -> bytes:
    """The digest that survivors sign: the body of a message of step `agree`."""
    return hashlib.sha256(b"survivors" + peers_digest + encode(survivors)).digest()
