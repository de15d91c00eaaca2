"""Names that a user typed: suggest the name that was meant, and import what `package.module:name` stands for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedlog.errors import InputError


def find_closest_name(name: str, known: Iterable[str]) -> str | None:
    """Find the known name that is most similar to this name; return None if no known name is similar."""
    found = get_close_matches(name, list(known), n=1)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the hint for an unknown name: "did you mean" and the most similar known name, or else `otherwise`."""
    found = find_closest_name(name, known)
    return otherwise if found is None else f"did you mean {found}?"


def hint_at_missing_path(path: Path) -> str:
    """Return the hint for a missing path: a similar name in its folder, or the current folder if there is none."""
    near = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    return did_you_mean(path.name, near, f"there is no such file or folder, seen from {Path.cwd()}")


# Functions and classes that a program passed as objects and that cannot be imported by name, e.g. from a notebook.
_GIVEN: dict[str, Callable[..., Any]] = {}


def register_callable(given: Callable[..., Any], name: str | None = None) -> str:
    """Return the name by which settings refer to a function or class: `name` if given, else `module:qualname`.

    `import_callable` finds the object by this name. An object that cannot be imported, for example one from a notebook,
    is stored under the name, and only this process can find it.
    """
    module, qualname = given.__module__, getattr(given, "__qualname__", type(given).__name__)
    chosen = name or f"{module}:{qualname}"
    if getattr(sys.modules.get(chosen.partition(":")[0]), chosen.partition(":")[2], None) is not given:
        _GIVEN[chosen] = given
    return chosen


def was_passed_as_object(name: str) -> bool:
    """Whether `register_callable` stored an object under this name in this process, so that no import is needed."""
    return name in _GIVEN


def import_callable(name: str, what: str, hint: str = "is its folder on PYTHONPATH?") -> Callable[..., Any]:
    """Import the function or class `package.module:name`; errors call it `what`, for example "the method"."""
    if name in _GIVEN:
        return _GIVEN[name]
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # any error: a user's module may raise anything when it is imported
        raise InputError(f"{what} {name} cannot be imported: {error}", hint=hint) from error
    if not callable(found):
        raise InputError(
            f"expected {what} {name} to be a function or a class, found: {type(found).__name__}",
            hint="give package.module:name of a function or a class",
        )
    return found  # type: ignore[no-any-return]
