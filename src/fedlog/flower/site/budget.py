"""A site's releases in all its runs together, and the limit that it set itself with `--require-privacy`.

Every release of a private run is counted in `state/privacy.jsonl`, with a limit or without one, so that a limit that is
set or changed later finds all of them. Runs may promise different things: they are added up as what one record bears.
A run without noise is counted too, as something that no epsilon bounds. The record belongs to the site's rows, not to
its key: where a site has taken part and the record is missing, nothing leaves until someone says what became of it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedlog.errors import InputError
from fedlog.files.durable import write_file
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.protocol.frame import FrameError
from fedlog.flower.protocol.promise import Limit
from fedlog.privacy.accounting import (
    BudgetSpentError,
    Event,
    Release,
    Unbounded,
    allow,
    describe_unbounded,
)
from fedlog.privacy.guarantee import DEFAULT_DELTA
from fedlog.privacy.protection import Protection
from fedlog.privacy.release_log import (
    FILE_NAME,
    add_up_across_runs,
    allow_across_runs,
    count_across_runs,
    read_log,
    record_across_runs,
    record_release,
    record_without_bound,
    restore_log,
    start_log,
)

LOST = "the record of what left before is lost"


def read_limit(config: SiteConfig) -> Limit | None:
    """Return the site's own limit; None where it has none."""
    return None if config.privacy is None else Limit.read(config.privacy)


def record_release_at_site(folder: SiteFolder, run: Path, guard: Protection, upcoming: Release) -> None:
    """Record the release for all runs and for this one, or in neither record if a budget does not cover it.

    A FrameError says that the site's own limit is used up; what the run itself does not cover is a BudgetSpentError.
    """
    run.mkdir(parents=True, exist_ok=True)
    own = start_log(run / FILE_NAME, guard.budget)
    # Before anything is counted: a server that asks for more than the run has must not use the site's limit up.
    allow(own.events, upcoming, own.budget)
    limit, path = read_limit(folder.read_config()), folder.state / FILE_NAME
    earlier = _find_earlier(folder)
    try:
        if limit is None:
            count_across_runs(path, upcoming, guard.budget, earlier)
        else:
            record_across_runs(path, upcoming, limit.budget, earlier)
    except BudgetSpentError as error:
        raise FrameError(_limit_message(error)) from None
    _mark_part(folder)
    record_release(run / FILE_NAME, upcoming)


def record_exact_statistics(folder: SiteFolder, run: str, round_number: int, exchange: str) -> None:
    """Record that exact statistics leave in this run: once a run, since no epsilon bounds the first of them."""
    event = Unbounded(round_number, exchange, _exact_reason(run))
    record_without_bound(folder.state / FILE_NAME, [event], _find_earlier(folder))
    _mark_part(folder)


def check_record(folder: SiteFolder) -> None:
    """Raise InputError where this site has taken part and its record of what left is missing.

    The folders of single runs do not replace it: some of them may have been removed.
    """
    if folder.took_part_file.exists() and not (folder.state / FILE_NAME).exists():
        raise InputError(
            f"expected the record of what has left this site, found none: {folder.state / FILE_NAME}",
            hint=f"`fedlog federate ledger {folder.path} --restore FILE` takes over a copy; with --lost you state that "
            "there is none, and with --new-rows that no row of before is among the data",
        )


def refuse_run_without_record(folder: SiteFolder) -> None:
    """Refuse every run until someone at the site has said what became of its missing record."""
    try:
        check_record(folder)
    except InputError:
        raise FrameError("this site cannot find its record of what it has released") from None


def restore_record(folder: SiteFolder, source: Path) -> None:
    """Take over a copy of the record, or the one of an earlier folder of the same rows.

    A copy may be older than the last runs: what their folders hold beyond it is added.
    """
    path = folder.state / FILE_NAME
    copied = read_log(source)
    if path.exists():
        raise InputError(
            f"this site already has a record of what has left it: {path}",
            hint="both count: move this one away, restore the other, and state with --lost what is then missing",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    restore_log(path, source, _find_missing(copied.events, _read_run_logs(folder)))
    _mark_part(folder)


def state_record_lost(folder: SiteFolder) -> None:
    """Begin a record that says that an earlier one is lost: no epsilon bounds what it held."""
    folder.state.mkdir(parents=True, exist_ok=True)
    record_without_bound(folder.state / FILE_NAME, [Unbounded(0, "unknown", LOST)], _read_run_logs(folder))
    _mark_part(folder)


def begin_for_new_rows(folder: SiteFolder) -> None:
    """Put the state of the earlier rows aside as a whole, and begin an empty record."""
    if folder.state.exists():
        numbers = (at for at in range(1, 10**6) if not folder.state.with_name(f"state.earlier-{at}").exists())
        folder.state.rename(folder.state.with_name(f"state.earlier-{next(numbers)}"))
    folder.state.mkdir(parents=True)
    record_without_bound(folder.state / FILE_NAME, [], ())


def refuse_beyond_limit(folder: SiteFolder, run: Path, upcoming: Release) -> None:
    """Refuse a run for which the site's limit leaves no privacy to spend.

    A site that has already taken part in the run goes on: it may still get the last head, which costs no privacy.
    """
    limit, own = read_limit(folder.read_config()), run / FILE_NAME
    try:
        if limit is None or (own.exists() and read_log(own).events):
            return
        allow_across_runs(_read_releases(folder), upcoming, limit.budget)
    except BudgetSpentError as error:
        raise FrameError(_limit_message(error)) from None
    except InputError:
        raise FrameError("this site cannot read its record of what it has released") from None


def describe_spending(folder: SiteFolder) -> str | None:
    """Return what the site has spent in all runs, and its limit, in a sentence; None before its first release."""
    events, limit = _read_releases(folder), read_limit(folder.read_config())
    if not events:
        return None
    path = folder.state / FILE_NAME
    before = read_log(path).limit if path.exists() else None
    delta = limit.budget.delta if limit else before.delta if before else DEFAULT_DELTA
    none = describe_unbounded(events)
    sentence = f"privacy spent in all runs so far: {none or add_up_across_runs(events, delta).guarantee}"
    if limit is None:
        return sentence
    sentence += f"; the limit is epsilon {limit.budget.epsilon:g} at delta {delta:g}"
    if before is not None and before != limit.budget:
        sentence += f" (it was {before.epsilon:g} at {before.delta:g}), and all of this counts against it"
    try:
        allow_across_runs(events, events[-1], limit.budget)
    except BudgetSpentError:
        return f"{sentence}; it does not cover another release like the last one"
    return sentence


def add_up_site(folder: SiteFolder) -> tuple[float | None, int]:
    """Return the epsilon of all that has left this site, and how many releases that were.

    The epsilon is None before the first release, and infinite where nothing bounds what left.
    """
    events, limit = _read_releases(folder), read_limit(folder.read_config())
    if not events:
        return None, 0
    if describe_unbounded(events) is not None:
        return math.inf, len(events)
    spent = add_up_across_runs(events, DEFAULT_DELTA if limit is None else limit.budget.delta).guarantee
    return (math.inf if spent is None or spent.epsilon is None else spent.epsilon), len(events)


def _find_earlier(folder: SiteFolder) -> tuple[Event, ...]:
    """What left before the site had a record of all runs; FrameError where it had one that is missing."""
    refuse_run_without_record(folder)
    folder.state.mkdir(parents=True, exist_ok=True)
    return () if (folder.state / FILE_NAME).exists() else _read_run_logs(folder)


def _mark_part(folder: SiteFolder) -> None:
    """Mark that the site has taken part: after the record was begun, and before anything leaves."""
    if not folder.took_part_file.exists():
        write_file(folder.took_part_file, f"what has left this site is counted in {folder.state.name}/{FILE_NAME}\n")


def _read_releases(folder: SiteFolder) -> tuple[Event, ...]:
    """Everything that has left in any run, also in runs that were not counted at the time."""
    path = folder.state / FILE_NAME
    if not path.exists():
        return _read_run_logs(folder)
    counted = read_log(path).events
    return (*counted, *_find_missing(counted, _find_exact_runs(folder)))


def _find_missing(counted: Sequence[Event], found: Sequence[Event]) -> tuple[Event, ...]:
    """What was found beyond what is counted already; of losses without bound each reason counts once."""
    reasons = {event.reason for event in counted if isinstance(event, Unbounded)}
    left = Counter(counted)
    missing = []
    for event in found:
        if isinstance(event, Unbounded):
            known = event.reason in reasons
        else:
            known = left[event] > 0
            left[event] -= 1
        missing += [] if known else [event]
    return tuple(missing)


def _read_run_logs(folder: SiteFolder) -> tuple[Event, ...]:
    """The release logs in the folders of the single runs."""
    logs = sorted(folder.state.glob(f"*/{FILE_NAME}"))
    return (*(event for path in logs for event in read_log(path).events), *_find_exact_runs(folder))


def _find_exact_runs(folder: SiteFolder) -> tuple[Unbounded, ...]:
    """The runs without noise in which this site has answered."""
    found = []
    for path in sorted(folder.state.glob("*/plan.json")):
        plan = json.loads(path.read_text())["plan"]
        if plan.get("promise") is None and any(path.parent.glob("step-*-*/")):
            found.append(Unbounded(0, str(plan.get("method")), _exact_reason(str(plan["name"]))))
    return tuple(found)


def _exact_reason(run: str) -> str:
    return f"exact statistics of these rows left in {run}"


def _limit_message(error: BudgetSpentError) -> str:
    return f"the limit of this site on all its runs together: {error.message}"
