"""What a private run promises, as part of its plan: the same at the server and at every site, or nobody takes part.

Noise is always drawn on the integer grid from the system's cryptographic source. A site keeps its own record of what
it has released in a run, and its own limit, so that no server can have more of it than the plan that the site accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedlog.core.clip import clip_named
from fedlog.errors import InputError
from fedlog.privacy.accounting import add_up
from fedlog.privacy.guarantee import Budget, Calibration, NoiseSource, Trust, Unit, delta_warning
from fedlog.privacy.protection import Bound, Protection, protection
from fedlog.privacy.release_log import FILE_NAME, read_log, record_release, start_log
from fedlog.privacy.secagg.terms import FEWEST


@dataclass(frozen=True)
class Promise:
    """The privacy of a run."""

    unit: str
    trust: str
    epsilon: float
    delta: float
    clip: str | None = None
    message_norm: float | None = None

    @property
    def budget(self) -> Budget:
        """All that the run may spend."""
        return Budget(self.epsilon, self.delta)

    @property
    def frozen(self) -> bool:
        """Whether bodies stay untrained: nothing else is promised for single records here."""
        return self.unit == Unit.RECORD


@dataclass(frozen=True)
class Secure:
    """The terms of a run's secure sums: the honest survivors each needs, and how many sites there are at most."""

    honest: int
    sites: int


def read_promise(values: object) -> Promise | None:
    """The promise in these JSON values; None where there is none, InputError for anything else."""
    return None if values is None else checked_promise(Promise(**_typed(values, Promise)))


def read_secure(values: object) -> Secure | None:
    """The terms of secure sums in these JSON values; None where there are none."""
    return None if values is None else checked_secure(Secure(**_typed(values, Secure)))


def checked_secure(secure: Secure) -> Secure:
    """The terms, if they can be kept."""
    if not FEWEST <= secure.honest <= secure.sites <= 10_000:
        raise InputError(
            f"a secure sum needs {FEWEST} honest sites at least and no more than there are: {secure.honest} of "
            f"{secure.sites}"
        )
    return secure


def checked_promise(promise: Promise) -> Promise:
    """The promise, if it can be kept in a deployment."""
    unit, trust = promise.unit, promise.trust
    if unit not in (Unit.RECORD, Unit.CLIENT):
        raise InputError(
            f"a deployment promises record or client privacy, found: {unit}",
            hint="`fedlog run --privacy paper` reproduces the paper in the simulator",
        )
    if trust not in list(Trust):
        raise InputError(f"unknown trust: {trust}", hint=f"one of {', '.join(Trust)}")
    promise.budget  # noqa: B018 (refuses what is none)
    if promise.clip is not None:
        clip_named(promise.clip)
    return promise


def protection_of(
    promise: Promise | None, secure: Secure | None, releases: int, shape: tuple[int, int]
) -> Protection | None:
    """How uploads of that shape are protected; None for a run without a promise."""
    if promise is None:
        return None
    trust = Trust(promise.trust)
    if (trust is Trust.DISTRIBUTED) != (secure is not None):
        raise InputError(
            f"{trust} noise {'needs' if secure is None else 'cannot be had under'} secure sums",
            hint="--trust distributed goes with --aggregation secure",
        )
    return protection(
        promise.budget,
        unit=Unit(promise.unit),
        trust=trust,
        calibration=Calibration.EXACT,
        bound=Bound(None if promise.clip is None else clip_named(promise.clip), promise.message_norm),
        releases=releases,
        shape=shape,
        clients=1 if secure is None else secure.sites,
        honest_survivors=1 if secure is None else secure.honest,
        noise=NoiseSource.DISCRETE,
    )


def release(folder: Path, guard: Protection | None, round_number: int, exchange: str) -> None:
    """Nothing, after the release was recorded in the run's folder; RunError where its budget does not cover it."""
    if guard is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    start_log(path, guard.budget)
    record_release(path, guard.release_event(round_number, exchange))


def warning(promise: Promise | None, records: int, sites: int) -> str | None:
    """A sentence where delta is above one over what is protected: a site's records, or the sites."""
    if promise is None:
        return None
    unit = Unit(promise.unit)
    return delta_warning(promise.delta, max(1, records if unit is Unit.RECORD else sites), unit)


def spent_in(folder: Path) -> dict[str, object] | None:
    """What the run in the folder has spent, with everything that gives it a meaning; None for nothing."""
    log = read_log(folder / FILE_NAME)
    found = add_up(log.events, log.budget.delta).guarantee
    return None if found is None else found.as_json()


@dataclass(frozen=True)
class Limit:
    """What a site asks of every run: noise from no farther away than this, and no more than this for all together.

    With a unit, just that one: a promise for whole sites is none of the same epsilon for single records where one site
    more or less is the neighbour, and the other way round it is none at all.
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
        """Nothing; InputError for a run that promises less."""
        order = [Trust.CENTRAL, Trust.DISTRIBUTED, Trust.LOCAL]
        if promise is None:
            raise InputError("this site takes part in private runs only")
        if order.index(Trust(promise.trust)) < order.index(self.trust):
            raise InputError(f"this site asks for {self.trust} noise, found: {promise.trust}")
        if self.unit is not None and promise.unit != self.unit:
            raise InputError(f"this site asks for {self.unit} privacy, found: {promise.unit}")
        if promise.epsilon > self.budget.epsilon or promise.delta > self.budget.delta:
            raise InputError(
                f"this site allows epsilon {self.budget.epsilon:g} at delta {self.budget.delta:g}, found: "
                f"{promise.epsilon:g} at {promise.delta:g}"
            )


def as_setting(value: Promise | Secure | None) -> str:
    """The JSON text of a part of a plan, for the app's settings; empty for none."""
    return "" if value is None else json.dumps(asdict(value))


def _typed(values: object, kind: type[Promise] | type[Secure]) -> dict[str, Any]:
    names = {entry.name: str(entry.type) for entry in fields(kind)}
    if not isinstance(values, Mapping) or set(values) != set(names):
        raise InputError(f"expected {', '.join(names)} in a plan's {kind.__name__.lower()}, found something else")
    for name, hint in names.items():
        value = values[name]
        wanted = {"str": (str,), "int": (int,), "float": (int, float)}[hint.partition(" ")[0]]
        if not (value is None and "None" in hint) and (isinstance(value, bool) or not isinstance(value, wanted)):
            raise InputError(f"expected {name} of type {hint} in a plan, found: {type(value).__name__}")
    return dict(values)
