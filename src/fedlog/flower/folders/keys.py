"""The key pair of a site, and files that only their owner may read.

The key pair is made at the site. The public key is printed for the operator; the private key is never copied.
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
            f"this secret file exists already and is not overwritten: {path}",
            hint="to make a new one, move the old file away, and tell everyone who uses the old secret",
        ) from None


def check_secret(path: Path) -> None:
    """Refuse a secret file that is missing, or that anyone but its owner can read or write."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        raise InputError(f"expected a secret file, found none: {path}", hint="is this the right folder?") from None
    if mode & 0o077:
        raise InputError(
            f"expected a secret file that only its owner can read, found mode {mode:04o}: {path}",
            hint=f"chmod 600 {path}, and make a new one if others may have read it",
        )


def create_site_key(private: Path, public: Path, comment: str) -> str:
    """Write a new P-384 key pair in the OpenSSH format, which Flower reads, and return the line of the public key."""
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
    """The public key in one OpenSSH line; InputError for any key that is not on a NIST curve: Flower takes no other."""
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


def compute_fingerprint(text: str) -> str:
    """The first 16 hex digits of the SHA-256 of a public key: short enough for two people to compare by telephone."""
    return hashlib.sha256(encode_public_key(read_public_key(text))).hexdigest()[:16]


def encode_public_key(key: ec.EllipticCurvePublicKey) -> bytes:
    """The public key in the binary format DER."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
