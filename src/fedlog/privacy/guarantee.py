"""Privacy guarantees as values: what is promised, for which unit, and who must be trusted.

An epsilon means nothing without its delta, its unit, its neighbouring relation, its number of releases and its trusted
party. A `Guarantee` has all of them, and always prints them together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from fedlog.errors import InputError


class Unit(StrEnum):
    """What a guarantee protects: one record, or one client with all its records. `paper` has no formal guarantee."""

    RECORD = "record"
    CLIENT = "client"
    PAPER = "paper"


class Trust(StrEnum):
    """Who adds the noise: the server, each client for itself, or all clients together in a secure sum."""

    CENTRAL = "central"
    LOCAL = "local"
    DISTRIBUTED = "distributed"


class Calibration(StrEnum):
    """The formula that computes the noise from a budget: exact composition, or the paper's Theorem 4."""

    EXACT = "exact"
    PAPER = "paper"


class NoiseSetting(StrEnum):
    """How a run draws its noise: fast floating-point noise from a seed, or exact discrete noise."""

    FLOAT = "float"
    """From the run's seed, in floating point: for simulation only."""
    DISCRETE = "discrete"
    """Exactly, on a grid, from the system's cryptographic source; every deployment uses it."""


PAPER_CAVEAT = "no formal guarantee: the bodies were trained on the protected records"

# Which inputs count as neighbours: the guarantee makes their outputs look alike.
NEIGHBOURS = {
    (Unit.RECORD, Trust.CENTRAL): "federations that differ by one record, added or removed",
    (Unit.RECORD, Trust.LOCAL): "data sets of one client that differ by one record, added or removed",
    (Unit.RECORD, Trust.DISTRIBUTED): "federations that differ by one record, added or removed",
    (Unit.CLIENT, Trust.CENTRAL): "federations that differ by one client, added or removed",
    (Unit.CLIENT, Trust.LOCAL): "any two data sets of one client",
    # A client that is absent adds no share of the noise, and the size of the noise in the sum tells that.
    (
        Unit.CLIENT,
        Trust.DISTRIBUTED,
    ): "federations in which one client, known to take part, has its statistics or zeros",
    (Unit.PAPER, Trust.CENTRAL): "data sets that differ by one record, bodies held fixed (they are not)",
    (Unit.PAPER, Trust.LOCAL): "data sets that differ by one record, bodies held fixed (they are not)",
    (Unit.PAPER, Trust.DISTRIBUTED): "data sets that differ by one record, bodies held fixed (they are not)",
}

# Who must be trusted for the guarantee to hold.
TRUSTED = {
    Trust.CENTRAL: "the server, which sees every client's exact message and adds the noise",
    Trust.LOCAL: "no one: each client adds the noise before anything leaves it",
    Trust.DISTRIBUTED: "no single party: the secure sum hides each message, and enough honest clients add their share "
    "of the noise",
}


# Used if a release log states no delta.
DEFAULT_DELTA = 1e-5


@dataclass(frozen=True)
class Budget:
    """A privacy budget: the epsilon and delta that all releases together must stay within."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise InputError(
                f"epsilon must be a finite number above 0, found: {self.epsilon!r}",
                hint="a usual choice is 1; smaller is more private",
            )
        if not (math.isfinite(self.delta) and 0 < self.delta < 1):
            raise InputError(
                f"delta must be above 0 and below 1, found: {self.delta!r}",
                hint="Gaussian noise needs a delta above 0; use 1e-5 or less, and less than 1/n for n protected units",
            )


def warn_of_large_delta(delta: float, protected: int, unit: Unit) -> str | None:
    """Return a warning if delta is above 1 / (the number of protected units), else None."""
    if protected < 1:
        raise InputError(f"the number of protected units must be at least 1, found: {protected}")
    if delta * protected <= 1:
        return None
    noun = "clients" if unit is Unit.CLIENT else "records"
    return (
        f"delta {delta:g} is above 1/{protected}: to publish one of the {protected} {noun} at random would meet it too"
    )


def format_epsilon(epsilon: float, digits: int = 4) -> str:
    """Format a spent epsilon with this many digits, rounded up: what is shown must not be less than what was spent.

    The nearest number is used if it is too small by at most one part in 1e9: the computation itself rounds that much.
    """
    text = f"{epsilon:.{digits}g}"
    if epsilon <= float(text) * (1 + 1e-9) or not math.isfinite(epsilon):
        return text
    last_place = 10.0 ** (math.floor(math.log10(epsilon)) + 1 - digits)
    return f"{epsilon + last_place / 2:.{digits}g}"


@dataclass(frozen=True)
class Guarantee:
    """An (epsilon, delta) guarantee with its unit, trust model and releases; `epsilon` None means no guarantee."""

    epsilon: float | None
    delta: float
    unit: Unit
    trust: Trust
    releases: int
    training_steps: int = 0
    """The steps of DP-SGD at each client that the guarantee covers."""
    nominal_epsilon: float | None = None
    """The epsilon of Theorem 4's formula, only with `--privacy paper`; it is no guarantee."""

    def __post_init__(self) -> None:
        if self.unit is Unit.PAPER and self.epsilon is not None:
            raise InputError(
                f"expected no epsilon for unit paper, which guarantees nothing, found: {self.epsilon!r}",
                hint="use nominal_epsilon",
            )

    @property
    def neighbours(self) -> str:
        """A description of which two data sets count as neighbours in this guarantee."""
        return NEIGHBOURS[self.unit, self.trust]

    @property
    def trusted(self) -> str:
        """A description of whom the protected people must trust."""
        return TRUSTED[self.trust]

    def __str__(self) -> str:
        if self.epsilon is not None:
            head = f"epsilon {format_epsilon(self.epsilon)} at delta {self.delta:g}"
        elif self.unit is not Unit.PAPER:
            head = "no formal guarantee: epsilon is unbounded"
        elif self.nominal_epsilon is None:
            head = PAPER_CAVEAT
        else:
            head = f"{PAPER_CAVEAT} (Theorem 4's formula reads epsilon {self.nominal_epsilon:.4g})"
        return "; ".join(
            [
                head,
                f"unit: {self.unit}",
                f"neighbours: {self.neighbours}",
                f"releases: {self.releases}"
                + (f" and {self.training_steps} steps of DP-SGD" if self.training_steps else ""),
                f"trusted: {self.trusted}",
            ]
        )

    def as_json(self) -> dict[str, object]:
        """Return the guarantee as JSON values."""
        return {
            "epsilon": self.epsilon,
            "nominal_epsilon": self.nominal_epsilon,
            "delta": self.delta,
            "unit": str(self.unit),
            "neighbours": self.neighbours,
            "releases": self.releases,
            "training_steps": self.training_steps,
            "composition": "Rényi moments" if self.training_steps else "exact",
            "mechanism": str(self.trust),
            "trusted": self.trusted,
            "statement": str(self),
        }
