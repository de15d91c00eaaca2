"""The callers at the gate: identify each by the key that signed its call, and record who is connected or refused."""

from __future__ import annotations

import datetime as dt
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedlog.errors import InputError
from fedlog.files.json_text import parse_json
from fedlog.flower.folders.folder import Value, log_event
from fedlog.flower.folders.keys import encode_public_key, read_public_key
from fedlog.flower.protocol.check_in import AHEAD_SECONDS, BEHIND_SECONDS, SiteState

PUBLIC_KEY, SIGNATURE, TIMESTAMP = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"


@dataclass(frozen=True)
class Caller:
    """Who made a call: the public key that signed it, and how far the signed time is ahead of this machine's clock."""

    key: bytes
    ahead_seconds: float

    @property
    def is_recent(self) -> bool:
        """Whether the signed time is close enough to the present for Flower to accept the call."""
        return -BEHIND_SECONDS < self.ahead_seconds < AHEAD_SECONDS


def sign_call(private: ec.EllipticCurvePrivateKey, now: dt.datetime) -> dict[str, str]:
    """Make the HTTP headers that sign a call made at the time `now`, as Flower's SuperNodes do."""
    time = now.isoformat().encode("ascii")
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    values = {
        PUBLIC_KEY: b64encode(private.public_key().public_bytes(*form)),
        TIMESTAMP: time,
        SIGNATURE: b64encode(private.sign(time, ec.ECDSA(hashes.SHA256()))),
    }
    return {name.decode(): value.decode() for name, value in values.items()}


def verify_caller(headers: Iterable[tuple[bytes, bytes]], now: dt.datetime) -> Caller | None:
    """Return who signed these headers; None if the signature is missing or wrong. The signed time is not checked."""
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
        """Find the name under which the operator registered this key; return None if it is not registered."""
        files = self._find_key_files()
        if files != self._read:
            read = {_read_key_file(self.folder / name): name.removesuffix(".pub") for name in sorted(files)}
            self._keys = {found: name for found, name in read.items() if found is not None}
            self._read = files
        return self._keys.get(key)

    def _find_key_files(self) -> dict[str, tuple[int, int]]:
        files: dict[str, tuple[int, int]] = {}
        for path in self.folder.glob("*.pub"):
            with suppress(FileNotFoundError):  # another process unregistered the site after the files were listed
                at = path.stat()
                files[path.name] = (at.st_mtime_ns, at.st_ino)
        return files


def _read_key_file(path: Path) -> bytes | None:
    try:
        return encode_public_key(read_public_key(path.read_text()))
    except (InputError, OSError, UnicodeDecodeError):
        return None  # the file is being written or removed, and will be read again when that is done


# A SuperNode asks for work every few seconds; heartbeats come every ten seconds or so also while it is busy.
LOST_SECONDS = 75.0
# The same event of the same site is logged once in this time: a broken site may call many times a second.
LOGGED_AGAIN_SECONDS = 60.0


def read_gate_file(path: Path) -> dict[str, Any]:
    """Read a JSON file of the gate, the program that forwards the sites' calls; empty if the gate has not run."""
    try:
        return dict(parse_json(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def read_connected_sites(presence_file: Path) -> frozenset[str]:
    """Read the sites that were connected when the gate last wrote this file; empty if the gate has not run."""
    return frozenset(map(str, read_gate_file(presence_file).get("connected", ())))


@dataclass
class Presence:
    """Records which sites are connected, when each called last, and which calls were refused."""

    log: Path | None = None  # the file to which events are written
    last_call: dict[str, dt.datetime] = field(default_factory=dict)
    connected: set[str] = field(default_factory=set)
    refusals: Counter[str] = field(default_factory=Counter)  # reason -> calls
    _logged: dict[tuple[str, str], dt.datetime] = field(default_factory=dict)  # site and event -> when

    def record_call(self, site: str, call: str, status: int, now: dt.datetime) -> None:
        """Record that a registered site made this call, and that the SuperLink answered with this HTTP status."""
        self.last_call[site] = now
        if call == "deactivate-node" and status == 200:
            if site in self.connected:
                self.connected.discard(site)
                self._log("disconnected", site=site)
        elif status == 200 and site not in self.connected:
            self.connected.add(site)
            self._log("connected", site=site)

    def count_refusal(self, reason: str, site: str | None, now: dt.datetime, **fields: Value) -> None:
        """Count a refused call, and log it if a registered site made it."""
        self.refusals[reason] += 1
        if site is not None and self._should_log(site, reason, now):
            self._log("call refused", site=site, reason=reason, **fields)

    def record_site_state(self, site: str, state: SiteState, now: dt.datetime) -> None:
        """Log the state that a registered site reports."""
        if self._should_log(site, state.name, now):
            self._log("news", site=site, news=str(state))

    def mark_lost_sites(self, now: dt.datetime) -> None:
        """Log sites that have not called for a while as lost, and no longer count them as connected."""
        for site in sorted(self.connected):
            if (now - self.last_call[site]).total_seconds() > LOST_SECONDS:
                self.connected.discard(site)
                self._log("lost", site=site, seconds=LOST_SECONDS)

    def as_json(self) -> dict[str, object]:
        """Return the connected sites, their last calls and the refusals as JSON values, for the presence file."""
        calls = {site: when.isoformat(timespec="seconds") for site, when in sorted(self.last_call.items())}
        return {
            "connected": sorted(self.connected),
            "last_call": calls,
            "refusals": dict(sorted(self.refusals.items())),
        }

    def _should_log(self, site: str, what: str, now: dt.datetime) -> bool:
        """Return False if this event of the site was logged in the last minute; else store the time and return True."""
        before = self._logged.get((site, what))
        if before is not None and (now - before).total_seconds() < LOGGED_AGAIN_SECONDS:
            return False
        self._logged[(site, what)] = now
        return True

    def _log(self, event: str, **fields: Value) -> None:
        if self.log is not None:
            log_event(self.log, event, **fields)
