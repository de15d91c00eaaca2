"""Decide which functions a model or weights file may name as its body: such files may come from other people.

The function would be run, and it could be harmful. So a body in a file must be in the catalogue, or the user must allow
the function by its name; a body that the user names may be any function. An environment variable passes the allowed
names on to worker processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from fedlog.errors import InputError

ALLOWED = "FEDLOG_ALLOW_CODE"


def allow_code(names: Iterable[str]) -> None:
    """Allow files to name these functions (`package.module:name`), in this process and those it starts."""
    os.environ[ALLOWED] = ",".join(sorted({*_read_allowed_functions(), *names}))


def refuse_unless_allowed(name: str, where: object) -> None:
    """Raise an InputError if this function is not allowed; `where` is the file that names it."""
    if name not in _read_allowed_functions():
        raise InputError(
            f"the body in {where} is a function that would be run: {name}",
            hint=f"if you trust it, use --allow-code {name}, or in Python fedlog.models.own_code.allow_code([...])",
        )


def _read_allowed_functions() -> set[str]:
    return set(filter(None, os.environ.get(ALLOWED, "").split(",")))
