"""The two ways in which the secure sum says no."""

from __future__ import annotations

from fedlog.errors import RunError


class RefusalError(RunError):
    """One message cannot be used; whoever received it is as before."""


class RoundFailedError(RunError):
    """The round is over without a sum, and nothing was unmasked."""
