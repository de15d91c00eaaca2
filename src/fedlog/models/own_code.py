"""Which functions a file may name: files of models and weights come from others, and a function named in them is run.

A body that the user typed, or gave to the API, may be any function. One that a file names must be of the catalogue,
or be allowed by its very name. The list goes to worker processes, and to those of a site, in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from fedlog.errors import InputError

ALLOWED = "FEDLOG_ALLOW_CODE"


def allow_code(names: Iterable[str]) -> None:
    """Let files name these functions, written `package.module:name`, in this process and those it starts."""
    os.environ[ALLOWED] = ",".join(sorted({*_read_allowed(), *names}))


def check_code(name: str, where: object) -> None:
    """Refuse a function that a file names, unless it was allowed. Its module is not loaded before."""
    if name not in _read_allowed():
        raise InputError(
            f"{where} names code that would be run: {name}",
            hint=f"if you know what it does, --allow-code {name}; in Python fedlog.models.own_code.allow_code([...])",
        )


def _read_allowed() -> set[str]:
    return set(filter(None, os.environ.get(ALLOWED, "").split(",")))
