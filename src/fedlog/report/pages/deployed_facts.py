"""A deployed run as its server knows it: what its page and its tables tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedlog.settings.differences import Difference


@dataclass(frozen=True)
class DeployedSite:
    """One site: what it reported, and its part in the rounds."""

    name: str
    body: str  # empty until the site has reported
    accuracy: float | None = None  # of the model that it keeps
    alone: float | None = None
    error: float | None = None  # where a number is predicted
    error_alone: float | None = None
    test_records: int | None = None
    kept: str = ""
    answered: int = 0  # rounds whose sum it is in
    left_out: int = 0  # how often it was refused or left out

    @property
    def gain(self) -> float | None:
        """The site's gain over training alone, as a share."""
        return None if self.accuracy is None or self.alone is None else self.accuracy - self.alone


@dataclass(frozen=True)
class DeployedRound:
    """One round at the server; bits are those from the start of the run."""

    number: int
    new_head: bool  # enough sites, and a sum that did not drown in its noise
    bits_up: int
    bits_down: int
    seconds: float
    slowest_seconds: float | None


@dataclass(frozen=True)
class DeployedRun:
    """A deployed run, finished or under way, as its server knows it."""

    name: str
    method: str
    seed: int
    planned: int
    rounds: tuple[DeployedRound, ...]
    sites: tuple[DeployedSite, ...]  # until they report, those that have answered
    finished: bool
    ended_early: str | None
    figures_stay: bool  # at the sites: the run is private or has secure sums
    bits_up: int
    bits_down: int  # at the end of a run the last head goes down too, after its last round
    bits_by_kind: Mapping[tuple[str, str], int]  # (up or down, kind)
    budget: Mapping[str, float] | None  # epsilon and delta that the plan promises
    spent: Mapping[str, Any] | None
    differences: tuple[Difference, ...]
    other_settings: tuple[tuple[str, str], ...]
    command: str
    made_with: Mapping[str, str] = field(default_factory=dict)

    @property
    def bits(self) -> int:
        """Up and down, all sites, so far."""
        return self.bits_up + self.bits_down

    @property
    def measure(self) -> str:
        """The name of the sites' measure: accuracy or, where a number is predicted, the share inside intervals."""
        number = any(site.error is not None for site in self.sites)
        return "share inside 90 % intervals" if number else "test accuracy"

    def mean(self, name: str) -> float | None:
        """The mean of a figure over the sites that reported it."""
        found = [value for site in self.sites if (value := getattr(site, name)) is not None]
        return sum(found) / len(found) if found else None
