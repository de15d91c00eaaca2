"""The two ways in which the secure sum says no."""

from __future__ import annotations

from fedlog.errors import RunError


class RefusalError(RunError):
    """One message cannot be used; the state of its receiver has not changed."""


class RoundFailedError(RunError):
    """The round is over without a sum, and nothing was unmasked."""
