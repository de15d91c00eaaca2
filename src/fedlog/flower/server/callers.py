"""Identify the callers at the gate by the keys with which they sign their calls, in the way of Flower's SuperNodes."""

from __future__ import annotations

import datetime as dt
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedlog.errors import InputError
from fedlog.flower.folders.keys import encode_public_key, read_public_key
from fedlog.flower.protocol.check_in import AHEAD_SECONDS, BEHIND_SECONDS

PUBLIC_KEY, SIGNATURE, TIMESTAMP = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"


@dataclass(frozen=True)
class Caller:
    """The key that signed a call, and how far the signed time is ahead of this machine's clock."""

    key: bytes
    ahead_seconds: float

    @property
    def is_recent(self) -> bool:
        """Whether Flower accepts a call that was signed at that time."""
        return -BEHIND_SECONDS < self.ahead_seconds < AHEAD_SECONDS


def sign_call(private: ec.EllipticCurvePrivateKey, now: dt.datetime) -> dict[str, str]:
    """The headers with which a Flower SuperNode signs a call that it makes now."""
    time = now.isoformat().encode("ascii")
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    values = {
        PUBLIC_KEY: b64encode(private.public_key().public_bytes(*form)),
        TIMESTAMP: time,
        SIGNATURE: b64encode(private.sign(time, ec.ECDSA(hashes.SHA256()))),
    }
    return {name.decode(): value.decode() for name, value in values.items()}


def verify_caller(headers: Iterable[tuple[bytes, bytes]], now: dt.datetime) -> Caller | None:
    """The caller who signed these headers, however long ago; None if the signature is missing or wrong."""
    given = {name.lower(): value for name, value in headers}
    try:
        key = serialization.load_pem_public_key(b64decode(given[PUBLIC_KEY], validate=True))
        signature = b64decode(given[SIGNATURE], validate=True)
        ahead = (dt.datetime.fromisoformat(given[TIMESTAMP].decode("ascii")) - now).total_seconds()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return None
        key.verify(signature, given[TIMESTAMP], ec.ECDSA(hashes.SHA256()))
    except (KeyError, ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return None
    return Caller(encode_public_key(key), ahead)


@dataclass
class RegisteredKeys:
    """The registered keys and their sites' names, read again whenever a key file changes."""

    folder: Path
    _read: dict[str, tuple[int, int]] = field(default_factory=dict)
    _keys: dict[bytes, str] = field(default_factory=dict)

    def find_site_name(self, key: bytes) -> str | None:
        """The name under which the operator registered this key; None if it is not registered."""
        found = {entry.name: entry.stat() for entry in os.scandir(self.folder)} if self.folder.is_dir() else {}
        files = {name: (at.st_mtime_ns, at.st_ino) for name, at in found.items() if name.endswith(".pub")}
        if files != self._read:
            read = {_read_key_file(self.folder / name): name.removesuffix(".pub") for name in sorted(files)}
            self._keys = {found: name for found, name in read.items() if found is not None}
            self._read = files
        return self._keys.get(key)


def _read_key_file(path: Path) -> bytes | None:
    try:
        return encode_public_key(read_public_key(path.read_text()))
    except (InputError, OSError, UnicodeDecodeError):
        return None  # the file is being written or removed, and will be read again when that is done
