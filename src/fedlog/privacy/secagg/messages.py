"""The messages of a secure sum: the signed messages of the clients, and the messages of the server."""

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
    """A client's signed message of one step of a secure sum.

    `body` is the contents of the message: one of the types below, encoded; in step `agree` a digest.
    """

    sender: int
    step: int
    body: bytes
    signature: bytes


@dataclass(frozen=True)
class PublicKeys:
    """The contents of a message of step `keys`: two public keys, and a commitment to the seed of the private mask."""

    cipher: bytes
    mask: bytes
    commitment: bytes


@dataclass(frozen=True)
class SealedShares:
    """The contents of a message of step `shares`: encrypted shares of the sender's secrets for each other client."""

    keys_digest: bytes
    """Digest of the list of keys that the sender got: all clients must have the same list."""
    sealed: dict[int, bytes]


@dataclass(frozen=True)
class MaskedVector:
    """The contents of a message of step `masked`: the client's vector under its masks."""

    peers_digest: bytes
    """Digest of the list of clients with which the sender shares masks."""
    vector: bytes


@dataclass(frozen=True)
class UnmaskingShares:
    """The contents of a message of step `unmask`: shares of the dropouts' mask keys and of the survivors' seeds."""

    mask_keys: dict[int, bytes]
    seeds: dict[int, bytes]


@dataclass(frozen=True)
class KeyList:
    """The server's message with the public keys of all clients, each as encoded `PublicKeys` and a signature."""

    keys: dict[int, bytes]


@dataclass(frozen=True)
class SealedShareDelivery:
    """The server's message with the encrypted shares that other clients made for one client."""

    sealed: dict[int, bytes]


@dataclass(frozen=True)
class Survivors:
    """The server's message with the list of survivors: the clients whose masked vectors arrived."""

    members: tuple[int, ...]


@dataclass(frozen=True)
class SurvivorSignatures:
    """The server's message with the survivors' signatures of the list of survivors."""

    signatures: dict[int, bytes]


def sign_envelope(terms: Terms, identity: SigningIdentity, step: Step, contents: bytes) -> bytes:
    """Sign the contents of a client's message for this step of this round, and encode both as an envelope."""
    return encode(Envelope(identity.number, int(step), contents, identity.sign(terms, step, contents)))


def open_envelope(terms: Terms, step: Step, blob: bytes) -> Envelope:
    """Decode a client's message; raise RefusalError unless a client on the roster signed it for this step and round."""
    envelope = decode(Envelope, blob)
    if envelope.step != step:
        raise RefusalError(f"expected a message of step {int(step)} ({step.name.lower()}), found: step {envelope.step}")
    check_signature(terms, step, envelope.sender, envelope.body, envelope.signature)
    return envelope


def decode_keys(contents: bytes) -> PublicKeys:
    """Decode the contents of a message of step `keys`; raise RefusalError if a length is wrong."""
    keys = decode(PublicKeys, contents)
    lengths = (len(keys.cipher), len(keys.mask), len(keys.commitment))
    if lengths != (32, 32, 32):
        raise RefusalError(f"expected two public keys and a commitment of 32 bytes each, found lengths: {lengths}")
    return keys


def digest_keys(key_list: KeyList) -> bytes:
    """Compute the SHA-256 digest of a list of keys; all messages of the next step must refer to the same list."""
    return hashlib.sha256(b"keys" + encode(key_list)).digest()


def digest_peers(keys_digest: bytes, members: Iterable[int]) -> bytes:
    """Compute the SHA-256 digest of the list of clients that shared their secrets, and of the keys they used."""
    return hashlib.sha256(b"peers" + keys_digest + encode(Survivors(tuple(sorted(members))))).digest()


def digest_survivors(peers_digest: bytes, survivors: Survivors) -> bytes:
    """Compute the digest of the list of survivors; each survivor signs this digest in step `agree`."""
    return hashlib.sha256(b"survivors" + peers_digest + encode(survivors)).digest()
