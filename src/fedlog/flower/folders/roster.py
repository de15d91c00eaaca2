"""The signing keys of secure sums: a site's own, and the list of all sites' public keys.

The list must reach a site from somewhere other than the server, for example by telephone or from the other sites: a
server that could choose the keys could be every other site.
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


def own_key(folder: SiteFolder) -> bytes:
    """The site's secret, made at the first call."""
    path = folder.path / KEY
    if not path.exists():
        write_secret(path, os.urandom(32))
    check_secret(path)
    return path.read_bytes()


def format_own_entry(folder: SiteFolder) -> str:
    """The site's entry for the list, as NAME=KEY with its public key."""
    return f"{folder.read_config().name}={SigningIdentity(0, own_key(folder)).public.hex()}"


def write_roster(folder: Path, entries: Iterable[str]) -> Roster:
    """Write the list from texts NAME=KEY and return it; at a site, its own entry must be among them."""
    roster: Roster = {}
    for text in entries:
        name, separator, key = text.partition("=")
        try:
            public = bytes.fromhex(key)
        except ValueError:
            public = b""
        if not separator or len(public) != 32 or name in roster:
            raise InputError(f"expected NAME=KEY with 64 hexadecimal digits, each name once, found: {text!r}")
        roster[check_site_name(name)] = public
    site = SiteFolder(folder)
    if site.config_file.exists():
        _check_own(roster, site)
    write_json(folder / ROSTER, {n: roster[n].hex() for n in sorted(roster)})
    return roster


def read_roster(folder: Path) -> Roster:
    """The list in the folder; an InputError where there is none."""
    try:
        stored = parse_json((folder / ROSTER).read_text())
        return {str(name): bytes.fromhex(key) for name, key in stored.items()}
    except FileNotFoundError:
        raise InputError(
            f"expected the list of the sites' keys, found none: {folder / ROSTER}",
            hint="`fedlog federate roster` at each site prints its entry, and writes the list from all of them",
        ) from None
    except (ValueError, AttributeError, TypeError):
        raise InputError(f"expected a list of the sites' keys, found something else: {folder / ROSTER}") from None


def read_own_roster(site: SiteFolder) -> Roster:
    """The list at a site; an InputError if it is missing or lacks the site's own key."""
    roster = read_roster(site.path)
    _check_own(roster, site)
    return roster


def _check_own(roster: Roster, site: SiteFolder) -> None:
    own = format_own_entry(site)
    name, _, key = own.partition("=")
    if name not in roster or roster[name].hex() != key:
        found = "another key" if name in roster else f"no {name}"
        raise InputError(
            f"expected this site's own key in its list of the sites' keys, found {found}: {site.path / ROSTER}",
            hint=f"its entry is {own}; give it to the other sites, and write the list with it",
        )


def number_members(roster: Mapping[str, bytes], members: Iterable[str]) -> dict[int, bytes]:
    """Number -> key of these members; a site's number is its place in the whole list, so it never changes."""
    places = {name: at for at, name in enumerate(sorted(roster))}
    return {places[name]: roster[name] for name in members}
