"""How sites are named and servers are addressed."""

from __future__ import annotations

import re

from fedlog.errors import InputError

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
DEFAULT_PORT = 8443


def check_site_name(text: str) -> str:
    """Return the name; refuse one that does not fit into file names, logs and Flower's list."""
    if not NAME.fullmatch(text):
        raise InputError(
            f"expected a name of at most 32 lower-case letters, digits, dots, dashes or underscores, found: {text!r}"
        )
    return text


def parse_server_address(text: str) -> str:
    """The address as HOST:PORT, with the usual port if none is given."""
    host, separator, port = text.rpartition(":")
    if not separator:
        host, port = text, str(DEFAULT_PORT)
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"expected HOST or HOST:PORT, found: {text!r}")
    return f"{host}:{port}"
