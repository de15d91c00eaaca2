"""The release log of a site (all that has left the site in any run), and the limit that `--require-privacy` sets.

There are two kinds of release logs at a site. The site's release log, `state/privacy.jsonl`, has the releases of all
runs. The release log of a run, `state/RUN/privacy.jsonl`, has those of one private run, and counts against its budget.

Every release of a private run is recorded in the site's release log, even if the site has no limit, so that a limit set
later counts all of them. If runs make different promises, their releases are added up as guarantees for single records.
A run without noise is recorded as an unbounded privacy loss. The log counts what was sent about the site's rows, so it
goes on when the site gets a new key. If a site has taken part and its release log is missing, the site sends nothing
until someone there has stated what happened to the log.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedlog.errors import InputError
from fedlog.files.durable import write_file
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.protocol.frame import SendableError
from fedlog.privacy import release_log
from fedlog.privacy.accounting import (
    BudgetSpentError,
    Event,
    Release,
    UnboundedLoss,
    append_within_budget,
    explain_missing_guarantee,
)
from fedlog.privacy.guarantee import DEFAULT_DELTA, Budget, Trust, Unit
from fedlog.privacy.protection import Protection
from fedlog.settings.promise import Promise

LOST = "the record of what left before is lost"
SEE_LEDGER = "`fedlog federate ledger DIR` at the site says what to do"
CHANGE_PROMISE = "start a run that promises as much (--privacy, --trust, --epsilon), or change --require-privacy here"


@dataclass(frozen=True)
class PrivacyRequirement:
    """The privacy that a site requires of every run: who adds the noise, and how much all runs together may spend.

    If `unit` is set, the site accepts only promises for that unit (single records, or whole sites): a promise for one
    unit does not hold with the same epsilon for the other.
    """

    trust: Trust
    budget: Budget
    unit: Unit | None = None  # None: records or whole sites

    @classmethod
    def parse(cls, text: str) -> PrivacyRequirement:
        """Parse `TRUST:EPSILON:DELTA` or `UNIT:TRUST:EPSILON:DELTA`, for example record:local:8:1e-5."""
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

    def check_promise(self, promise: Promise | None) -> None:
        """Raise InputError if a run's promise is weaker than the site requires; None means a run without privacy."""
        order = [Trust.CENTRAL, Trust.DISTRIBUTED, Trust.LOCAL]
        if promise is None:
            raise InputError(
                "this site takes part in private runs only, found a run without privacy", hint=CHANGE_PROMISE
            )
        if order.index(promise.trust) < order.index(self.trust):
            raise InputError(f"this site requires {self.trust} noise, found: {promise.trust}", hint=CHANGE_PROMISE)
        if self.unit is not None and promise.unit is not self.unit:
            raise InputError(f"this site requires {self.unit} privacy, found: {promise.unit}", hint=CHANGE_PROMISE)
        if promise.epsilon > self.budget.epsilon or promise.delta > self.budget.delta:
            raise InputError(
                f"this site allows epsilon {self.budget.epsilon:g} at delta {self.budget.delta:g}, found: "
                f"epsilon {promise.epsilon:g} at delta {promise.delta:g}",
                hint=CHANGE_PROMISE,
            )


def read_privacy_requirement(config: SiteConfig) -> PrivacyRequirement | None:
    """Read the privacy that the site requires of every run from its settings; return None if it requires none."""
    return None if config.privacy is None else PrivacyRequirement.parse(config.privacy)


def record_release_at_site(folder: SiteFolder, run: Path, protection: Protection, upcoming: Release) -> None:
    """Record a release in the release logs of the site and of the run, or in neither if a budget is exceeded.

    Raise SendableError if the release exceeds the site's limit, and BudgetSpentError if it exceeds the run's budget.
    """
    run.mkdir(parents=True, exist_ok=True)
    own = release_log.start_or_resume_log(run / release_log.FILE_NAME, protection.budget)
    # Checked first: a server that asks for more than the run's budget must not use up the site's limit.
    append_within_budget(own.events, upcoming, own.budget)
    limit, path = read_privacy_requirement(folder.read_config()), folder.release_log
    earlier = _find_releases_for_new_site_log(folder)
    try:
        if limit is None:
            release_log.record_site_release_unchecked(path, upcoming, protection.budget, earlier)
        else:
            release_log.record_site_release(path, upcoming, limit.budget, earlier)
    except BudgetSpentError as error:
        raise SendableError(_describe_exceeded_limit(error)) from None
    _mark_as_participant(folder)
    release_log.record_release(run / release_log.FILE_NAME, upcoming)


def record_exact_statistics(folder: SiteFolder, run: str, round_number: int, exchange: str) -> None:
    """Record in the site's release log that exact statistics leave the site: an unbounded privacy loss.

    One entry per run is enough.
    """
    event = UnboundedLoss(round_number, exchange, _format_exact_release_reason(run))
    release_log.record_unbounded_losses(folder.release_log, [event], _find_releases_for_new_site_log(folder))
    _mark_as_participant(folder)


def check_site_release_log(folder: SiteFolder) -> None:
    """Raise InputError if this site has taken part in a run and its release log is missing.

    The release logs of the runs do not replace it: the folders of some runs may have been removed.
    """
    if folder.took_part_file.exists() and not folder.release_log.exists():
        raise InputError(
            f"expected this site's release log (what has left the site), found none: {folder.release_log}",
            hint=f"run `fedlog federate ledger {folder.path}` with --restore FILE if there is a copy, with --lost if "
            "there is none, or with --new-rows if the data hold none of the rows that took part",
        )


def refuse_run_without_site_release_log(folder: SiteFolder) -> None:
    """Raise SendableError if the site's release log is missing: without it, the site takes part in no run."""
    try:
        check_site_release_log(folder)
    except InputError:
        raise SendableError("this site cannot find its release log (what has left the site)", hint=SEE_LEDGER) from None


def restore_site_release_log(folder: SiteFolder, source: Path) -> None:
    """Restore the site's release log from the file `source`.

    `source` is a backup of the log, or the release log of an earlier site folder with the same data. It may lack the
    latest runs, so the releases that only the release logs of runs have are added.
    """
    path = folder.release_log
    copied = release_log.read_log(source)
    if path.exists():
        raise InputError(
            f"this site already has a release log: {path}",
            hint=f"this log and {source} both count, but cannot be added up: a release may be in both. Move {path} "
            f"away and run `fedlog federate ledger {folder.path} --lost`; from then on the site has no privacy "
            "guarantee",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    release_log.restore_log(path, source, _find_uncounted_releases(copied.events, _read_releases_from_run_logs(folder)))
    _mark_as_participant(folder)


def declare_site_release_log_lost(folder: SiteFolder) -> None:
    """Begin a new release log of the site with an unbounded privacy loss, which says that the old log is lost."""
    if folder.release_log.exists():  # the entry could never be taken back
        raise InputError(
            f"this site's release log is not lost: {folder.release_log}",
            hint=f"`fedlog federate ledger {folder.path}` adds it up; if it lacks releases, move it away first",
        )
    folder.state.mkdir(parents=True, exist_ok=True)
    release_log.record_unbounded_losses(
        folder.release_log, [UnboundedLoss(0, "unknown", LOST)], _read_releases_from_run_logs(folder)
    )
    _mark_as_participant(folder)


def start_site_release_log_for_new_rows(folder: SiteFolder) -> None:
    """Begin an empty release log, because the site has new rows; rename the state folder of the earlier rows."""
    if folder.state.exists():
        numbers = (at for at in range(1, 10**6) if not folder.state.with_name(f"state.earlier-{at}").exists())
        folder.state.rename(folder.state.with_name(f"state.earlier-{next(numbers)}"))
    folder.state.mkdir(parents=True)
    release_log.record_unbounded_losses(folder.release_log, [], ())


def refuse_run_beyond_limit(folder: SiteFolder, run: Path, upcoming: Release) -> None:
    """Raise SendableError if the first release of a new run would exceed the site's limit on all its runs.

    A site that has already taken part in the run may stay: it may still receive the last head, which costs no privacy.
    """
    limit, own = read_privacy_requirement(folder.read_config()), run / release_log.FILE_NAME
    try:
        if limit is None or (own.exists() and release_log.read_log(own).events):
            return
        release_log.append_within_site_limit(_read_releases(folder), upcoming, limit.budget)
    except BudgetSpentError as error:
        raise SendableError(_describe_exceeded_limit(error)) from None
    except InputError:
        raise SendableError("this site cannot read its release log (what has left the site)", hint=SEE_LEDGER) from None


def describe_spending(folder: SiteFolder) -> str | None:
    """Say how much privacy all runs of the site have spent, and what the site's limit is; None before any release."""
    events, limit = _read_releases(folder), read_privacy_requirement(folder.read_config())
    if not events:
        return None
    path = folder.release_log
    before = release_log.read_log(path).stated_budget if path.exists() else None
    delta = limit.budget.delta if limit else before.delta if before else DEFAULT_DELTA
    none = explain_missing_guarantee(events)
    sentence = (
        f"privacy spent in all runs so far: {none or release_log.compute_spending_across_runs(events, delta).guarantee}"
    )
    if limit is None:
        return sentence
    sentence += f"; the limit is epsilon {limit.budget.epsilon:g} at delta {delta:g}"
    if before is not None and before != limit.budget:
        sentence += f" (it was {before.epsilon:g} at {before.delta:g}), and all that was spent counts against it"
    try:
        release_log.append_within_site_limit(events, events[-1], limit.budget)
    except BudgetSpentError:
        return f"{sentence}; it does not cover another release like the last one"
    return sentence


def add_up_releases(folder: SiteFolder) -> tuple[float | None, int]:
    """Return the epsilon of all releases of this site together, and the number of releases.

    The epsilon is None before the first release, and infinite if exact statistics have left the site.
    """
    events, limit = _read_releases(folder), read_privacy_requirement(folder.read_config())
    if not events:
        return None, 0
    if explain_missing_guarantee(events) is not None:
        return math.inf, len(events)
    spent = release_log.compute_spending_across_runs(
        events, DEFAULT_DELTA if limit is None else limit.budget.delta
    ).guarantee
    return (math.inf if spent is None or spent.epsilon is None else spent.epsilon), len(events)


def _find_releases_for_new_site_log(folder: SiteFolder) -> tuple[Event, ...]:
    """Return the releases of earlier runs with which a new release log of the site begins; none if the log exists.

    Raise SendableError if the log is lost.
    """
    refuse_run_without_site_release_log(folder)
    folder.state.mkdir(parents=True, exist_ok=True)
    return () if folder.release_log.exists() else _read_releases_from_run_logs(folder)


def _mark_as_participant(folder: SiteFolder) -> None:
    """Write the file that marks the site as a participant: from now on, a missing release log is a lost one."""
    if not folder.took_part_file.exists():
        write_file(
            folder.took_part_file,
            f"what has left this site is counted in {folder.state.name}/{release_log.FILE_NAME}\n",
        )


def _read_releases(folder: SiteFolder) -> tuple[Event, ...]:
    """Read the releases of all runs, including runs from before the site had a release log."""
    path = folder.release_log
    if not path.exists():
        return _read_releases_from_run_logs(folder)
    counted = release_log.read_log(path).events
    return (*counted, *_find_uncounted_releases(counted, _find_losses_of_runs_without_noise(folder)))


def _find_uncounted_releases(counted: Sequence[Event], found: Sequence[Event]) -> tuple[Event, ...]:
    """Return the releases of `found` that are not in `counted`.

    Unbounded losses are the same if they have the same reason, whatever their rounds and exchanges.
    """
    reasons = {event.reason for event in counted if isinstance(event, UnboundedLoss)}
    left = Counter(counted)
    missing = []
    for event in found:
        if isinstance(event, UnboundedLoss):
            known = event.reason in reasons
        else:
            known = left[event] > 0
            left[event] -= 1
        missing += [] if known else [event]
    return tuple(missing)


def _read_releases_from_run_logs(folder: SiteFolder) -> tuple[Event, ...]:
    """Read the releases in the release log of every run; add one unbounded privacy loss for each run without noise."""
    logs = sorted(folder.state.glob(f"*/{release_log.FILE_NAME}"))
    return (
        *(event for path in logs for event in release_log.read_log(path).events),
        *_find_losses_of_runs_without_noise(folder),
    )


def _find_losses_of_runs_without_noise(folder: SiteFolder) -> tuple[UnboundedLoss, ...]:
    """Return one unbounded privacy loss for each run without noise in which this site has answered."""
    found = []
    for path in sorted(folder.state.glob("*/plan.json")):
        plan = json.loads(path.read_text())["plan"]
        if plan.get("promise") is None and any(path.parent.glob("step-*-*/")):
            found.append(UnboundedLoss(0, str(plan.get("method")), _format_exact_release_reason(str(plan["name"]))))
    return tuple(found)


def _format_exact_release_reason(run: str) -> str:
    """Return the reason that is stored with the unbounded privacy loss of a run without noise."""
    return f"exact statistics of these rows left in {run}"


def _describe_exceeded_limit(error: BudgetSpentError) -> str:
    return f"the limit of this site on all its runs together: {error.message}"
