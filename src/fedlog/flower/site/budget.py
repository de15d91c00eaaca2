"""What a site has released in all its runs together, and the limit that it set itself with `--require-privacy`.

Every release of a private run is counted in `state/privacy.jsonl`, with a limit or without one, so that a limit that is
set or changed later finds all of them. Runs may promise different things: they are added up as what one record bears.
"""

from __future__ import annotations

from pathlib import Path

from fedlog.errors import InputError
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.protocol.frame import FrameError
from fedlog.flower.protocol.promise import Limit
from fedlog.privacy.accounting import BudgetSpentError, Event, Release, allow
from fedlog.privacy.across_runs import add_up_across_runs, allow_across_runs
from fedlog.privacy.protection import Protection
from fedlog.privacy.release_log import (
    FILE_NAME,
    count_across_runs,
    read_log,
    record_across_runs,
    record_release,
    start_log,
)


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
    earlier = () if path.exists() else _read_run_logs(folder)
    try:
        if limit is None:
            count_across_runs(path, upcoming, guard.budget, earlier)
        else:
            record_across_runs(path, upcoming, limit.budget, earlier)
    except BudgetSpentError as error:
        raise FrameError(_limit_message(error)) from None
    record_release(run / FILE_NAME, upcoming)


def refuse_beyond_limit(folder: SiteFolder, run: Path, upcoming: Release) -> None:
    """Refuse a run for which the site's limit leaves no privacy to spend.

    A site that already has a part in the run goes on: the last head is for it too, and costs nothing.
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
    before = read_log(path).budget if path.exists() else None
    delta = limit.budget.delta if limit else before.delta if before else 1e-5
    found = add_up_across_runs(events, delta).guarantee
    sentence = f"privacy spent in all runs so far: {found}"
    if limit is None or found is None:
        return sentence
    sentence += f"; the limit is epsilon {limit.budget.epsilon:g} at delta {delta:g}"
    if before is not None and before != limit.budget:
        sentence += f" (it was {before.epsilon:g} at {before.delta:g}), and all of this counts against it"
    try:
        allow_across_runs(events, events[-1], limit.budget)
    except BudgetSpentError:
        return f"{sentence}; it does not cover another release like the last one"
    return sentence


def _read_releases(folder: SiteFolder) -> tuple[Event, ...]:
    path = folder.state / FILE_NAME
    return read_log(path).events if path.exists() else _read_run_logs(folder)


def _read_run_logs(folder: SiteFolder) -> tuple[Event, ...]:
    """What the logs of the single runs hold."""
    logs = sorted(folder.state.glob(f"*/{FILE_NAME}"))
    return tuple(event for path in logs for event in read_log(path).events)


def _limit_message(error: BudgetSpentError) -> str:
    return f"the limit of this site on all its runs together: {error.message}"
