"""The keys of a federation: a site's key pair, the server's certificates, and the signing keys for secure sums.

A site's key pair is made at the site. The public key is printed for the operator; the private key is never copied.

The federation has a certificate authority of its own. The authority's private key stays with the operator, and signs
server certificates and nothing else. The sites get the authority's certificate, which is public: with it they check
that they talk to the right server. Renewal makes a new server certificate under the same authority, so that no site has
to change anything.

The roster is the list of all sites' public signing keys for secure sums. Sites get it by telephone or from each other,
never from the server: a server that could choose the keys could pretend to be every other site.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlog.errors import InputError
from fedlog.files.durable import PRIVATE_MODE, create_file, write_file
from fedlog.files.json_text import parse_json, write_json
from fedlog.flower.folders.folder import SubPath, check_site_or_run_name
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.privacy.secagg.crypto import SigningIdentity

SECRET_FOLDER_MODE = 0o700


def write_secret(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read; raise InputError if it exists, since an overwritten key is lost."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=SECRET_FOLDER_MODE)
    try:
        create_file(path, content, PRIVATE_MODE)
    except FileExistsError:
        raise InputError(
            f"this secret file exists already and is not overwritten: {path}",
            hint="to make a new one, move the old file away, and tell everyone who uses the old secret",
        ) from None


def check_secret(path: Path) -> None:
    """Raise InputError if a secret file is missing, or if anyone but its owner can read or write it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        raise InputError(
            f"expected a secret file, found none: {path}",
            hint="give the folder in which `fedlog federate init` or `join` made it, or restore the file from a backup",
        ) from None
    if mode & 0o077:
        raise InputError(
            f"expected a secret file that only its owner can read, found mode {mode:04o}: {path}",
            hint=f"chmod 600 {path}, and make a new one if others may have read it",
        )


def create_site_key(private: Path, public: Path, comment: str) -> str:
    """Write a new P-384 key pair in the OpenSSH format, which Flower reads, and return the public key as one line."""
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
    """Parse a public key in OpenSSH's format; raise InputError unless it is on a NIST curve, as Flower requires."""
    try:
        key = serialization.load_ssh_public_key(text.strip().encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"expected a public key line that starts with ecdsa-sha2-nistp384, found {text.strip()[:20]!r}: {error}",
            hint="give the line in the site's file site.pub; `fedlog federate join` at the site makes it",
        ) from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InputError(
            f"expected an ECDSA public key on a NIST curve, found {type(key).__name__}",
            hint="`fedlog federate join` at the site makes the right kind",
        )
    return key


def compute_fingerprint(text: str) -> str:
    """Compute the first 16 hex digits of a public key's SHA-256, short enough to be compared by telephone."""
    return hashlib.sha256(encode_public_key(read_public_key(text))).hexdigest()[:16]


def encode_public_key(key: ec.EllipticCurvePublicKey) -> bytes:
    """Encode the public key in the binary format DER."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


AUTHORITY_DAYS = 3650
SERVER_DAYS = 397
# Clocks at the sites may be a little behind; a certificate "from the future" would be refused there.
CLOCK_SLACK = dt.timedelta(hours=1)


@dataclass(frozen=True)
class CertificateFolder:
    """The folder with the certificates (which are public) and private keys of the authority and of the server."""

    path: Path

    authority = SubPath("ca.crt")
    authority_key = SubPath("ca.key")
    server = SubPath("server.crt")
    server_key = SubPath("server.key")


def create_certificates(folder: CertificateFolder, hosts: tuple[str, ...], now: dt.datetime) -> None:
    """Create an authority and a server certificate for these hosts; raise InputError if either key exists already."""
    for secret in (folder.authority_key, folder.server_key):
        if secret.exists():
            raise InputError(
                f"expected a folder without certificates, found: {secret}",
                hint="`fedlog federate renew` makes a new server certificate",
            )
    _make_certificate_names(hosts)  # refuse a bad host name before anything is written
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedlog federation authority")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        _begin_certificate(name, name, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_secret(folder.authority_key, _encode_private_key(key))
    write_file(folder.authority, certificate.public_bytes(serialization.Encoding.PEM))
    _write_server_certificate(folder, hosts, now, certificate, key)


def renew_server_certificate(folder: CertificateFolder, hosts: tuple[str, ...], now: dt.datetime) -> None:
    """Replace the server's certificate and key. The authority stays the same, so sites need no change."""
    check_secret(folder.authority_key)
    key = serialization.load_pem_private_key(folder.authority_key.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"expected an elliptic-curve key, found {type(key).__name__}: {folder.authority_key}",
            hint="restore the file that `fedlog federate init` wrote, from a backup",
        )
    _make_certificate_names(hosts)
    authority = x509.load_pem_x509_certificate(folder.authority.read_bytes())
    folder.server_key.unlink(missing_ok=True)
    _write_server_certificate(folder, hosts, now, authority, key)


def check_authority_certificate(authority: Path) -> None:
    """Raise InputError if the file for the authority's certificate is missing or holds no certificate."""
    hint = "the operator has it as certificates/ca.crt; it is public"
    if not authority.is_file():
        raise InputError(f"expected the certificate of the federation's authority, found none: {authority}", hint=hint)
    try:
        x509.load_pem_x509_certificate(authority.read_bytes())
    except ValueError:
        raise InputError(
            f"expected the certificate of the federation's authority, found no certificate in: {authority}", hint=hint
        ) from None


def count_days_left(folder: CertificateFolder, now: dt.datetime) -> float:
    """Return the number of days until the server's certificate expires; negative if it has expired."""
    end = x509.load_pem_x509_certificate(folder.server.read_bytes()).not_valid_after_utc
    return (end - now).total_seconds() / 86400


def _write_server_certificate(
    folder: CertificateFolder,
    hosts: tuple[str, ...],
    now: dt.datetime,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> None:
    names = _make_certificate_names(hosts)
    key = ec.generate_private_key(ec.SECP384R1())
    # A common name holds at most 64 characters; clients check the alternative names, not this one.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        _begin_certificate(subject, authority.subject, key.public_key(), now, SERVER_DAYS)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    write_secret(folder.server_key, _encode_private_key(key))
    write_file(folder.server, certificate.public_bytes(serialization.Encoding.PEM))


def _make_certificate_names(hosts: tuple[str, ...]) -> list[x509.GeneralName]:
    """Return the names for which the server's certificate is valid: these hosts, `localhost` and 127.0.0.1."""
    if not hosts:
        raise InputError("expected a host name for the server's certificate, found none", hint="--host NAME")
    # The operator's commands and the SuperLink's workers always reach the server through the loopback.
    wanted = [*hosts, *(host for host in ("localhost", "127.0.0.1") if host not in hosts)]
    return [_make_certificate_name(host) for host in wanted]


def _make_certificate_name(host: str) -> x509.GeneralName:
    """Convert a host name or IP address to the form that certificates use; raise InputError if `host` is neither."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    allowed = all(
        0 < len(label) <= 63 and label.isascii() and label.replace("-", "a").isalnum() and label.strip("-") == label
        for label in labels
    )
    if not allowed or len(host) > 253:
        raise InputError(
            f"expected a host name or an IP address, found: {host!r}",
            hint="give the name without https:// and without a port",
        )
    return x509.DNSName(host)


def _begin_certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _encode_private_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


KEY, ROSTER = "sum.key", "roster.json"
Roster = dict[str, bytes]


def load_signing_key(folder: SiteFolder) -> bytes:
    """Load the site's secret signing key for secure sums; the first call creates the key."""
    path = folder.path / KEY
    if not path.exists():
        write_secret(path, os.urandom(32))
    check_secret(path)
    return path.read_bytes()


def format_roster_entry(folder: SiteFolder) -> str:
    """Format the site's entry in the roster: NAME=KEY, with the public signing key in hexadecimal."""
    return f"{folder.read_config().name}={SigningIdentity(0, load_signing_key(folder)).public_key.hex()}"


def write_roster(folder: Path, entries: Iterable[str]) -> Roster:
    """Write the roster (the list of the sites' keys) from entries NAME=KEY into the folder, and return it.

    Raise InputError if an entry is invalid, or if the folder is a site's and the roster lacks the key of that site.
    """
    roster: Roster = {}
    for text in entries:
        name, separator, key = text.partition("=")
        try:
            public = bytes.fromhex(key)
        except ValueError:
            public = b""
        if not separator or len(public) != 32:
            raise InputError(
                f"expected a roster entry NAME=KEY with a key of 64 hexadecimal digits, found: {text!r}",
                hint="`fedlog federate roster DIR` at a site prints its entry",
            )
        if name in roster:
            raise InputError(
                f"expected one roster entry for each site, found a second one for {name}: {text!r}",
                hint="leave out one of the two; `fedlog federate roster DIR` at the site prints its entry",
            )
        roster[check_site_or_run_name(name)] = public
    site = SiteFolder(folder)
    if site.config_file.exists():
        _check_own_entry(roster, site)
    write_json(folder / ROSTER, {n: roster[n].hex() for n in sorted(roster)})
    return roster


def read_roster(folder: Path) -> Roster:
    """Read the roster in a server's or site's folder; raise InputError if it is missing or invalid."""
    try:
        stored = parse_json((folder / ROSTER).read_text())
        return {str(name): bytes.fromhex(key) for name, key in stored.items()}
    except FileNotFoundError:
        raise InputError(
            f"expected the roster (the list of the sites' keys), found none: {folder / ROSTER}",
            hint="`fedlog federate roster DIR` at each site prints its entry; `fedlog federate roster DIR NAME=KEY "
            "...` with the entries of all sites writes the roster",
        ) from None
    except (ValueError, AttributeError, TypeError):
        raise InputError(
            f"expected a roster (a list of the sites' keys), found something else: {folder / ROSTER}",
            hint="write it again: `fedlog federate roster DIR NAME=KEY ...` with the entries of all sites",
        ) from None


def read_own_roster(site: SiteFolder) -> Roster:
    """Read the roster in this site's folder; raise InputError if it lacks this site's key."""
    roster = read_roster(site.path)
    _check_own_entry(roster, site)
    return roster


def _check_own_entry(roster: Roster, site: SiteFolder) -> None:
    own = format_roster_entry(site)
    name, _, key = own.partition("=")
    if name not in roster or roster[name].hex() != key:
        found = "another key" if name in roster else f"no {name}"
        raise InputError(
            f"expected this site's key in its roster (the list of keys), found {found}: {site.path / ROSTER}",
            hint=f"give this site's entry {own} to the other sites, and write the roster again: "
            "`fedlog federate roster DIR NAME=KEY ...` with the entries of all sites",
        )


def index_member_keys(roster: Mapping[str, bytes], members: Iterable[str]) -> dict[int, bytes]:
    """Return the public signing keys of the members of a secure sum, by site number.

    All sites in the roster, members or not, are numbered from 0 in the order of their names.
    """
    places = {name: at for at, name in enumerate(sorted(roster))}
    return {places[name]: roster[name] for name in members}
