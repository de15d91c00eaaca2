"""Read TOML files and texts as dictionaries, with errors that name the file, and write values as TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlog.errors import InputError

TomlValue = str | float | Sequence[str | float]


def read_toml(path: Path, what: str, hint: str = "is the path right?") -> dict[str, Any]:
    """Read a TOML file. Errors call it `what`, for example "the schema"; `hint` is for a file that cannot be opened."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {what} {path}: {error.strerror}", hint=hint) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text: {error}", hint="save the file as UTF-8") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse a TOML text; errors call the text `where`, for example by its file name."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(
            f"{where}: not valid TOML: {error}",
            hint='write one NAME = VALUE on each line, and texts in quotes: method = "fedlog"',
        ) from None
    except RecursionError:
        raise InputError(f"{where}: not valid TOML: nested too deeply", hint="use fewer nested lists") from None


def format_toml(values: Mapping[str, TomlValue]) -> str:
    """Format the values as the text of a TOML file, with one line NAME = VALUE for each."""
    return "".join(f"{name} = {format_toml_value(value)}\n" for name, value in values.items())


def format_toml_value(value: TomlValue) -> str:
    """Format a text, a number, true or false, or a list of texts or numbers as in a TOML file."""
    # JSON is also TOML here, except for the character DEL: JSON does not escape it, and TOML requires that.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
