"""The signing keys for secure sums: the site's secret key, and the roster, the list of all sites' public keys.

The roster must not come from the server, but for example by telephone or from the other sites: a server that could
choose the keys could play the part of every other site.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedlog.errors import InputError
from fedlog.files.json_text import parse_json, write_json
from fedlog.flower.folders.folder import check_site_name
from fedlog.flower.folders.keys import check_secret, write_secret
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.privacy.secagg.crypto import SigningIdentity

KEY, ROSTER = "sum.key", "roster.json"
Roster = dict[str, bytes]


def load_sum_key(folder: SiteFolder) -> bytes:
    """The site's secret signing key for secure sums; it is made at the first call."""
    path = folder.path / KEY
    if not path.exists():
        write_secret(path, os.urandom(32))
    check_secret(path)
    return path.read_bytes()


def format_own_entry(folder: SiteFolder) -> str:
    """The site's entry for the roster, as NAME=KEY with its public key."""
    return f"{folder.read_config().name}={SigningIdentity(0, load_sum_key(folder)).public_key.hex()}"


def write_roster(folder: Path, entries: Iterable[str]) -> Roster:
    """Write the roster from texts NAME=KEY and return it. In a site's folder, the site's entry must be among them."""
    roster: Roster = {}
    for text in entries:
        name, separator, key = text.partition("=")
        try:
            public = bytes.fromhex(key)
        except ValueError:
            public = b""
        if not separator or len(public) != 32 or name in roster:
            raise InputError(
                f"expected NAME=KEY with 64 hexadecimal digits, each name once, found: {text!r}",
                hint="`fedlog federate roster DIR` at a site prints its entry",
            )
        roster[check_site_name(name)] = public
    site = SiteFolder(folder)
    if site.config_file.exists():
        _check_own_entry(roster, site)
    write_json(folder / ROSTER, {n: roster[n].hex() for n in sorted(roster)})
    return roster


def read_roster(folder: Path) -> Roster:
    """The roster in the folder; InputError if there is none."""
    try:
        stored = parse_json((folder / ROSTER).read_text())
        return {str(name): bytes.fromhex(key) for name, key in stored.items()}
    except FileNotFoundError:
        raise InputError(
            f"expected the list of the sites' keys, found none: {folder / ROSTER}",
            hint="`fedlog federate roster FOLDER` at each site prints its entry; with all entries it writes the list",
        ) from None
    except (ValueError, AttributeError, TypeError):
        raise InputError(f"expected a list of the sites' keys, found something else: {folder / ROSTER}") from None


def read_own_roster(site: SiteFolder) -> Roster:
    """The roster in a site's folder; InputError if it is missing or lacks the site's public key."""
    roster = read_roster(site.path)
    _check_own_entry(roster, site)
    return roster


def _check_own_entry(roster: Roster, site: SiteFolder) -> None:
    own = format_own_entry(site)
    name, _, key = own.partition("=")
    if name not in roster or roster[name].hex() != key:
        found = "another key" if name in roster else f"no {name}"
        raise InputError(
            f"expected this site's key in its list of the sites' keys, found {found}: {site.path / ROSTER}",
            hint=f"this site's entry is {own}; give it to the other sites, and write the list with it",
        )


def number_members(roster: Mapping[str, bytes], members: Iterable[str]) -> dict[int, bytes]:
    """The members' keys by number. A site's number is its position in the sorted roster, the same in every sum."""
    places = {name: at for at, name in enumerate(sorted(roster))}
    return {places[name]: roster[name] for name in members}
