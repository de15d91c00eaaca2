"""Names of sites and servers, and text files that are read and replaced as a whole."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from fedlog.errors import InputError

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
DEFAULT_PORT = 8443


def check_site_name(text: str) -> str:
    """The text, when it can name a site in file names, logs and Flower's list."""
    if not NAME.fullmatch(text):
        raise InputError(
            f"expected a name of at most 32 lower-case letters, digits, dots, dashes or underscores, found: {text!r}"
        )
    return text


def parse_server_address(text: str) -> str:
    """HOST:PORT, with the usual port where none is given."""
    host, separator, port = text.rpartition(":")
    if not separator:
        host, port = text, str(DEFAULT_PORT)
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"expected HOST or HOST:PORT, found: {text!r}")
    return f"{host}:{port}"


def write_atomically(path: Path, text: str) -> None:
    """Replace the file as a whole: a reader, or a restart after a crash, sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_toml(path: Path, maker: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"expected {path.name} in {path.parent}, found none", hint=f"`{maker}` makes it") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"expected TOML in {path}, found: {error}") from None
