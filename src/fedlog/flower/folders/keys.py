"""A site's own key, and files that only their owner may read.

The key is made at the site: the public half is printed for the operator, the private half is never copied.
"""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedlog.errors import InputError
from fedlog.files.durable import PRIVATE_MODE, create_file, write_file

SECRET_FOLDER_MODE = 0o700


def write_secret(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read; refuse an existing one, since an overwritten key is lost."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=SECRET_FOLDER_MODE)
    try:
        create_file(path, content, PRIVATE_MODE)
    except FileExistsError:
        raise InputError(
            f"expected to create a new secret, found a file already there: {path}",
            hint="move it away if you really want a new one; whoever knows the old one must then be told",
        ) from None


def check_secret(path: Path) -> None:
    """Refuse a secret that is not there, or that others than its owner can read or write."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        raise InputError(f"expected a secret file, found none: {path}") from None
    if mode & 0o077:
        raise InputError(
            f"expected a secret that only its owner can read, found mode {mode:04o}: {path}",
            hint=f"chmod 600 {path}, and make a new one if others may have read it",
        )


def create_site_key(private: Path, public: Path, comment: str) -> str:
    """Write a new P-384 key pair in OpenSSH form, as Flower reads it, and return the line of the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(
        private,
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    line = f"{line} {comment}"
    write_file(public, line + "\n")
    return line


def read_public_key(text: str) -> ec.EllipticCurvePublicKey:
    """The key of one OpenSSH line; an InputError for anything but a NIST curve, since Flower takes nothing else."""
    try:
        key = serialization.load_ssh_public_key(text.strip().encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"expected a public key line that starts with ecdsa-sha2-nistp384, found: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(
            f"expected an ECDSA public key on a NIST curve, found {type(key).__name__}",
            hint="`fedlog federate join` at the site makes the right kind",
        )
    return key


def fingerprint(text: str) -> str:
    """The first 16 hex digits of SHA-256 over the key itself: what two people read to each other on the telephone."""
    raw = read_public_key(text).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(raw).hexdigest()[:16]
