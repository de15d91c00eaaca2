"""Who calls at the gate: the key that signed a call, as Flower's SuperNodes do, and whether it is registered."""

from __future__ import annotations

import datetime as dt
import os
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedlog.errors import InputError
from fedlog.flower.folders.keys import read_public_key

PUBLIC_KEY, SIGNATURE, TIMESTAMP = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"
# As Flower has them: how old a signed time may be, and how far ahead of the clock here.
OLDEST_SECONDS, AHEAD_SECONDS = 305.0, 5.0


def read_signing_key(headers: Iterable[tuple[bytes, bytes]], now: dt.datetime) -> bytes | None:
    """The public key, as DER, with which a call's time was signed; None without one, or a time that is not now."""
    given = {name.lower(): value for name, value in headers}
    try:
        key = serialization.load_pem_public_key(b64decode(given[PUBLIC_KEY], validate=True))
        signature = b64decode(given[SIGNATURE], validate=True)
        age = (now - dt.datetime.fromisoformat(given[TIMESTAMP].decode("ascii"))).total_seconds()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not -AHEAD_SECONDS < age < OLDEST_SECONDS:
            return None
        key.verify(signature, given[TIMESTAMP], ec.ECDSA(hashes.SHA256()))
    except (KeyError, ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return None
    return _der(key)


@dataclass
class Callers:
    """The registered keys, read again whenever one of their files changes: sites come and go while the gate runs."""

    folder: Path
    _read: dict[str, tuple[int, int]] = field(default_factory=dict)
    _keys: set[bytes] = field(default_factory=set)

    def is_registered(self, key: bytes) -> bool:
        """Whether the operator has registered this key."""
        found = {entry.name: entry.stat() for entry in os.scandir(self.folder)} if self.folder.is_dir() else {}
        files = {name: (at.st_mtime_ns, at.st_ino) for name, at in found.items() if name.endswith(".pub")}
        if files != self._read:
            self._keys = set(filter(None, (_key_in(self.folder / name) for name in files)))
            self._read = files
        return key in self._keys


def _key_in(path: Path) -> bytes | None:
    try:
        return _der(read_public_key(path.read_text()))
    except (InputError, OSError, UnicodeDecodeError):
        return None  # being written, or taken away: the file changes once more


def _der(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
