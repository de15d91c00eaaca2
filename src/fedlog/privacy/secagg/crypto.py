"""Sign, encrypt, derive keys and make masks for a secure sum; signatures and derived keys are for one round only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedlog.privacy.discrete import RandomBytes
from fedlog.privacy.secagg.encoding import RefusalError
from fedlog.privacy.secagg.fixed_point import Words, unpack_words
from fedlog.privacy.secagg.terms import Step, Terms

TAG_BYTES = 16
# Each key is used for one message or one stream only, so a fixed nonce is safe.
_NONCE = bytes(12)
_STREAM_NONCE = bytes(16)


@dataclass(frozen=True)
class SigningIdentity:
    """A client's number and long-term signing key, whose public key is on the roster."""

    number: int
    secret: bytes

    @staticmethod
    def create(number: int, entropy: RandomBytes) -> SigningIdentity:
        """Create an identity with a random signing key."""
        return SigningIdentity(number, entropy(32))

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)

    @property
    def public_key(self) -> bytes:
        """The public key for the roster, 32 bytes."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, terms: Terms, step: Step, contents: bytes) -> bytes:
        """Sign the contents of a message: return 64 bytes that are valid for this step of this round only."""
        return self._key.sign(_join_bytes_to_sign(terms, step, self.number, contents))

    def __repr__(self) -> str:
        return f"SigningIdentity({self.number})"


def check_signature(terms: Terms, step: Step, sender: int, contents: bytes, signature: bytes) -> None:
    """Raise `RefusalError` unless the sender is on the roster and signed these contents for this step of this round."""
    if sender not in terms.roster:
        raise RefusalError(f"client {sender} is not on the roster")
    try:
        Ed25519PublicKey.from_public_bytes(terms.roster[sender]).verify(
            signature, _join_bytes_to_sign(terms, step, sender, contents)
        )
    except (InvalidSignature, ValueError):
        raise RefusalError(
            f"the signature of client {sender} under its message of step {step.name.lower()} is wrong"
        ) from None


CheckSignature = Callable[[Terms, Step, int, bytes, bytes], None]


@dataclass(frozen=True)
class SharedSignatureChecks:
    """Checks each signature once for all clients in one process, instead of once for each client.

    This is for the simulator only: a client of a real federation checks every signature by itself.
    """

    right: set[tuple[bytes, Step, int, bytes, bytes]] = field(default_factory=set)

    def check_once(self, terms: Terms, step: Step, sender: int, contents: bytes, signature: bytes) -> None:
        """Check as `check_signature` does, but skip a signature that was found to be right before."""
        signed = (terms.digest, step, sender, contents, signature)
        if signed not in self.right:
            check_signature(terms, step, sender, contents, signature)
            self.right.add(signed)


def _join_bytes_to_sign(terms: Terms, step: Step, sender: int, contents: bytes) -> bytes:
    return b"".join([terms.digest, bytes([step]), sender.to_bytes(4, "little"), contents])


def derive_public_key(secret: bytes) -> bytes:
    """Derive the X25519 public key of a 32-byte secret."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


@dataclass(frozen=True)
class KeyAgreement:
    """A client's X25519 secret, loaded once for key agreements with many other clients."""

    secret: bytes

    @cached_property
    def _key(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.secret)

    def derive_keys(self, owner: int, public: bytes, *contexts: bytes) -> list[bytes]:
        """Derive a 32-byte key for each context, which only this client and client `owner` can compute.

        `public` is the public key of `owner`.
        """
        try:
            shared = self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise RefusalError(f"the X25519 public key of client {owner} is not valid") from None
        return [HKDF(algorithm=SHA256(), length=32, salt=None, info=context).derive(shared) for context in contexts]

    def __repr__(self) -> str:
        return "KeyAgreement(...)"


def make_mask_key_context(terms: Terms, one: int, other: int) -> bytes:
    """Make the context from which two clients derive their common mask key; both clients make the same bytes."""
    low, high = sorted((one, other))
    return b"mask" + terms.digest + low.to_bytes(4, "little") + high.to_bytes(4, "little")


def make_cipher_key_context(terms: Terms, sender: int, receiver: int) -> bytes:
    """Make the context from which two clients derive the key for messages from `sender` to `receiver`."""
    return b"seal" + terms.digest + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")


def encrypt(key: bytes, text: bytes) -> bytes:
    """Encrypt the bytes with this key (authenticated: `decrypt` detects any change)."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, text, None)


def decrypt(key: bytes, sealed: bytes, sender: int) -> bytes:
    """Decrypt the shares from this sender; raise RefusalError if any bit was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        raise RefusalError(f"the encrypted shares of client {sender} were changed on the way") from None


def commit_to_seed(terms: Terms, number: int, seed: bytes) -> bytes:
    """Return a 32-byte commitment to a client's seed: a hash that hides the seed, but fits no other seed."""
    return hashlib.sha256(b"seed" + terms.digest + number.to_bytes(4, "little") + seed).digest()


def make_mask(terms: Terms, key: bytes) -> Words:
    """Make the mask of a key: one word for each coordinate, from the ChaCha20 key stream."""
    stream = Cipher(algorithms.ChaCha20(key, _STREAM_NONCE), mode=None).encryptor()
    return unpack_words(stream.update(bytes(terms.coordinates * terms.value_bytes)), terms.value_bytes)
