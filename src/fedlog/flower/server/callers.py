"""Identify callers at the gate by the key that signed a call, as Flower's SuperNodes do; refuse unregistered keys."""

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
from fedlog.flower.folders.keys import read_public_key
from fedlog.flower.protocol.check_in import AHEAD_SECONDS, BEHIND_SECONDS

PUBLIC_KEY, SIGNATURE, TIMESTAMP = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"


@dataclass(frozen=True)
class Caller:
    """A key that signed a call, and how far ahead of the clock here the signed time is."""

    key: bytes
    ahead_seconds: float

    @property
    def is_now(self) -> bool:
        """Whether Flower accepts a call that was signed at that time."""
        return -BEHIND_SECONDS < self.ahead_seconds < AHEAD_SECONDS


def sign_call(private: ec.EllipticCurvePrivateKey, now: dt.datetime) -> dict[str, str]:
    """The headers of a call that is signed now, as Flower's SuperNodes make them."""
    time = now.isoformat().encode("ascii")
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    values = {
        PUBLIC_KEY: b64encode(private.public_key().public_bytes(*form)),
        TIMESTAMP: time,
        SIGNATURE: b64encode(private.sign(time, ec.ECDSA(hashes.SHA256()))),
    }
    return {name.decode(): value.decode() for name, value in values.items()}


def read_caller(headers: Iterable[tuple[bytes, bytes]], now: dt.datetime) -> Caller | None:
    """The key with which a call's time was signed, whenever that was; None without a good signature."""
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
    return Caller(_encode_key(key), ahead)


@dataclass
class Callers:
    """The registered keys, read again whenever one of their files changes: sites come and go while the gate runs."""

    folder: Path
    _read: dict[str, tuple[int, int]] = field(default_factory=dict)
    _keys: dict[bytes, str] = field(default_factory=dict)

    def find_name(self, key: bytes) -> str | None:
        """The name under which the operator has registered this key; None for a key that is not registered."""
        found = {entry.name: entry.stat() for entry in os.scandir(self.folder)} if self.folder.is_dir() else {}
        files = {name: (at.st_mtime_ns, at.st_ino) for name, at in found.items() if name.endswith(".pub")}
        if files != self._read:
            read = {_key_in(self.folder / name): name.removesuffix(".pub") for name in sorted(files)}
            self._keys = {found: name for found, name in read.items() if found is not None}
            self._read = files
        return self._keys.get(key)


def _key_in(path: Path) -> bytes | None:
    try:
        return _encode_key(read_public_key(path.read_text()))
    except (InputError, OSError, UnicodeDecodeError):
        return None  # being written, or taken away: the file changes once more


def _encode_key(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
