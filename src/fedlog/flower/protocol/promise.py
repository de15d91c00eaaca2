"""The releases and spending of a private run, at the server and at its sites, and a site's conditions for every run.

A site keeps its own record of what it has released in a run, and its own limit, so that no server can have more of it
than the plan that the site accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedlog.errors import InputError
from fedlog.privacy.accounting import add_up
from fedlog.privacy.guarantee import Budget, Trust, Unit, delta_warning
from fedlog.privacy.protection import Protection
from fedlog.privacy.release_log import FILE_NAME, read_log, record_release, start_log
from fedlog.settings.promise import Promise


def release(folder: Path, guard: Protection | None, round_number: int, exchange: str) -> None:
    """Record the release in the run's folder; RunError where its budget does not cover it."""
    if guard is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    start_log(path, guard.budget)
    record_release(path, guard.release_event(round_number, exchange))


def warn_of_delta(promise: Promise | None, records: int, sites: int) -> str | None:
    """A warning where delta is above 1/n, for n protected records or sites; None where it is not."""
    if promise is None:
        return None
    protected = records if promise.unit is Unit.RECORD else sites
    return delta_warning(promise.delta, max(1, protected), promise.unit)


def read_spending(folder: Path) -> dict[str, object] | None:
    """The spending of the run in the folder, as a whole guarantee; None where nothing was released."""
    log = read_log(folder / FILE_NAME)
    found = add_up(log.events, log.budget.delta).guarantee
    return None if found is None else found.as_json()


@dataclass(frozen=True)
class Limit:
    """A site's conditions for every run: who may add the noise, and how much all runs together may spend.

    With a unit, only promises for that unit count. A promise for whole sites is no promise of the same epsilon for
    single records where one site more or less is the neighbour, and one for records says nothing about whole sites.
    """

    trust: Trust
    budget: Budget
    unit: Unit | None = None  # None: either

    @classmethod
    def read(cls, text: str) -> Limit:
        """The limit in `TRUST:EPSILON:DELTA` or `UNIT:TRUST:EPSILON:DELTA`, for example record:local:8:1e-5."""
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
                hint="for example local:8:1e-5, client:distributed:2:1e-6",
            ) from None

    def check(self, promise: Promise | None) -> None:
        """Refuse a run that promises less."""
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
