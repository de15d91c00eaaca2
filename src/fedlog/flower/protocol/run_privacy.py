"""Record the releases of a private run and add up their cost, and check the privacy that a site requires.

Each site keeps a record of what it has released in a run, and checks it against its limit before every release. So no
server can get more from a site than the plan that the site accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedlog.errors import InputError
from fedlog.privacy.accounting import compute_spending
from fedlog.privacy.guarantee import Budget, Trust, Unit, warn_of_large_delta
from fedlog.privacy.protection import Protection
from fedlog.privacy.release_log import FILE_NAME, read_log, record_release, start_or_resume_log
from fedlog.settings.promise import Promise


def record_run_release(folder: Path, protection: Protection | None, round_number: int, exchange: str) -> None:
    """Record the release of one exchange in the run's folder; RunError if the run's budget does not cover it."""
    if protection is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    start_or_resume_log(path, protection.budget)
    record_release(path, protection.make_release_event(round_number, exchange))


def describe_large_delta(promise: Promise | None, records: int, sites: int) -> str | None:
    """A warning if delta is above 1/n, for n protected records or sites; else None."""
    if promise is None:
        return None
    protected = records if promise.unit is Unit.RECORD else sites
    return warn_of_large_delta(promise.delta, max(1, protected), promise.unit)


def read_privacy_spent(folder: Path) -> dict[str, object] | None:
    """The guarantee for all releases of the run in this folder, as JSON values; None if nothing was released."""
    log = read_log(folder / FILE_NAME)
    found = compute_spending(log.events, log.budget.delta).guarantee
    return None if found is None else found.as_json()


@dataclass(frozen=True)
class PrivacyRequirement:
    """The privacy that a site requires of every run: who adds the noise, and how much all runs together may spend.

    With a unit, the site accepts only promises for that unit: a promise for single records says nothing about whole
    sites, and one for whole sites, added or removed, does not give single records the same epsilon.
    """

    trust: Trust
    budget: Budget
    unit: Unit | None = None  # None: records or whole sites

    @classmethod
    def read(cls, text: str) -> PrivacyRequirement:
        """Read the text `TRUST:EPSILON:DELTA` or `UNIT:TRUST:EPSILON:DELTA`, for example record:local:8:1e-5."""
        *units, trust, epsilon, delta = text.split(":") if text.count(":") in (2, 3) else ("", "", "")
        try:
            budget = Budget(float(epsilon), float(delta))
            unit = Unit(units[0]) if units else None
            if unit not in (None, Unit.RECORD, Unit.CLIENT):
                raise ValueError
            return cls(Trust(trust), budget, unit)
        except ValueError:
            raise InputError(
                f"expected TRUST:EPSILON:DELTA or UNIT:TRUST:EPSILON:DELTA, found: {text!r}",
                hint="for example local:8:1e-5 or client:distributed:2:1e-6",
            ) from None

    def check(self, promise: Promise | None) -> None:
        """Raise InputError if the run promises less than the site requires; None is a run without privacy."""
        order = [Trust.CENTRAL, Trust.DISTRIBUTED, Trust.LOCAL]
        if promise is None:
            raise InputError("this site takes part in private runs only")
        if order.index(promise.trust) < order.index(self.trust):
            raise InputError(f"this site asks for {self.trust} noise, found: {promise.trust}")
        if self.unit is not None and promise.unit is not self.unit:
            raise InputError(f"this site asks for {self.unit} privacy, found: {promise.unit}")
        if promise.epsilon > self.budget.epsilon or promise.delta > self.budget.delta:
            raise InputError(
                f"this site allows epsilon {self.budget.epsilon:g} at delta {self.budget.delta:g}, found: "
                f"{promise.epsilon:g} at {promise.delta:g}"
            )
