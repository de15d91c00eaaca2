"""The errors that fedlog raises for mistakes of a user and for failed runs.

Every message says what was expected, what was found and on which object; the hint says what to do next. The command
line prints message and hint on two lines, without a traceback, and exits with the exit code of the error's class.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FedlogError(Exception):
    """The base class of the errors that fedlog raises; `exit_code` is the exit code of the command line."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross from worker processes; the default would lose the hint.
        return _rebuild_error, (type(self), self.message, self.hint)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    @property
    def one_line(self) -> str:
        """The message and the hint on one line, for a table or a list."""
        return self.message if self.hint is None else f"{self.message}; {self.hint}"


class InputError(FedlogError):
    """An error in what the user gave: a name, a file, a number or a combination of settings (exit code 2)."""

    exit_code = 2


class RunError(FedlogError):
    """An error that stops a run which started properly (exit code 1)."""


@contextmanager
def prefix_errors(where: str) -> Iterator[None]:
    """Put `where`, such as a file name, before the message of an InputError, unless the message already contains it."""
    try:
        yield
    except InputError as error:
        if where in error.message:
            raise
        raise InputError(f"{where}: {error.message}", hint=error.hint) from None


@contextmanager
def add_default_hint(hint: str) -> Iterator[None]:
    """Add this hint to errors without a hint that are raised in the `with` block or in the decorated function."""
    try:
        yield
    except FedlogError as error:
        error.hint = error.hint or hint
        raise


def get_first_line_of_error(error: Exception) -> str:
    """Return the first line of an error's text, or the name of the error's class if the text is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _rebuild_error(kind: type[FedlogError], message: str, hint: str | None) -> FedlogError:
    return kind(message, hint=hint)
