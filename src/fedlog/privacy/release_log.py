"""The release log on disk: one JSON object on each line, forced to the disk before anything is sent.

The first line holds the budget, so that a resumed run keeps the budget it started with. A site also has one log of all
its runs, with the site's limit as its budget. The site may change its limit: a later budget line replaces the earlier
one, and all earlier releases still count. If the first thing that a site sent was exact statistics, its log begins
with a line that says that there is no budget yet.

A run protects single records or whole clients. A site may take part in runs of both kinds, and both reveal something
about its records. So the releases of all its runs are added up as guarantees for single records.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from fedlog.errors import InputError
from fedlog.files.durable import append_line, write_file
from fedlog.files.lock import lock_file
from fedlog.privacy.accounting import (
    Event,
    Release,
    Spending,
    TrainingRound,
    UnboundedLoss,
    append_within_budget,
    check_within_budget,
    compute_spending,
    compute_spending_under_promise,
    find_promises,
)
from fedlog.privacy.guarantee import Budget, Calibration, Trust, Unit

_WEAKEST_FIRST = (Trust.CENTRAL, Trust.DISTRIBUTED, Trust.LOCAL)
FILE_NAME = "privacy.jsonl"
_VERSION = 1
_EVENTS: dict[str, type[Event]] = {kind.kind: kind for kind in (Release, TrainingRound, UnboundedLoss)}
_BudgetOrEvent = TypeVar("_BudgetOrEvent")


def compute_spending_across_runs(events: Sequence[Event], delta: float) -> Spending:
    """Compute the epsilon at `delta` after each event in all runs of a site, and the guarantee for all events.

    If some runs protect whole clients and others single records, the guarantee is for single records. It requires trust
    in every party that any of these runs trusts.
    """
    if len(promises := find_promises(events)) < 2:
        return compute_spending(events, delta)
    weakest = min((trust for _, trust in promises), key=_WEAKEST_FIRST.index)
    return compute_spending_under_promise(events, convert_to_record_privacy(events), (Unit.RECORD, weakest), delta)


def append_within_site_limit(events: Sequence[Event], upcoming: Event, limit: Budget) -> tuple[Event, ...]:
    """Return the events of all runs of a site, with the upcoming one appended.

    Raise BudgetSpentError if these events together exceed `limit`, the site's limit.
    """
    together = (*events, upcoming)
    if len(find_promises(together)) == 1:
        return append_within_budget(events, upcoming, limit)
    check_within_budget(convert_to_record_privacy(together), Calibration.EXACT, limit)
    return together


def convert_to_record_privacy(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the events with the sensitivity to a change of one record, or an upper bound of it.

    Local noise for a whole client hides any change of its data, so also a change of one record. If neighbours differ by
    one client, a changed record replaces a message of norm at most S by another, so the sum changes by at most 2S. No
    release gets a smaller sensitivity than in its own run, so the guarantee of each run still holds.
    """
    if any(unit is Unit.PAPER for unit, _ in find_promises(events)):
        raise InputError(
            "a run with --privacy paper has no guarantee, so it cannot be added up with other runs of this site",
            hint="use --privacy record or --privacy client",
        )
    return tuple(
        replace(event, sensitivity=2 * event.sensitivity)
        if isinstance(event, Release) and event.unit is Unit.CLIENT and event.trust is not Trust.LOCAL
        else event
        for event in events
    )


@dataclass(frozen=True)
class ReleaseLog:
    """The content of a release log: the privacy budget that it states, and the events so far."""

    stated_budget: Budget | None
    """None if there is no budget: a site without a limit has sent exact statistics only."""
    events: tuple[Event, ...] = ()

    @property
    def budget(self) -> Budget:
        """The privacy budget that the log states; InputError if it states none."""
        if self.stated_budget is None:
            raise InputError(
                "expected a budget in the release log, found none: only exact statistics were released",
                hint="give the log of a run with --privacy",
            )
        return self.stated_budget

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases of noisy messages or sums: all events except rounds of DP-SGD and unbounded privacy losses."""
        return tuple(event for event in self.events if isinstance(event, Release))


def format_budget_line(budget: Budget | None) -> str:
    """Format the log line that states the budget; for None, the line that states that there is no budget yet."""
    stated = {"event": "no budget", "version": _VERSION}
    return json.dumps(stated if budget is None else {**stated, "event": "budget", **asdict(budget)})


def format_event_line(event: Event) -> str:
    """Format the log line of one event: a release, a round of DP-SGD, or an unbounded privacy loss."""
    return json.dumps({"event": event.kind, **asdict(event)})


def parse_log(text: str, where: str) -> ReleaseLog:
    """Parse a release log; raise InputError, which names the line, if a line cannot be read.

    A last line that is cut off counts as an unbounded privacy loss: the release that it announced may have been sent.
    """
    lines, cut_off = _split_lines(text)
    if not lines:
        raise InputError(
            f"{where}: expected a budget in line 1, found no complete line",
            hint="restore the file from a copy: without it nobody knows what was released before",
        )
    budget: Budget | None = None
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        found = _parse_line(line, f"{where}: line {number}", first=number == 1)
        if isinstance(found, Budget):
            budget = found
        elif found is not None:
            events.append(found)
    return ReleaseLog(budget, (*events, *cut_off))


def read_log(path: Path) -> ReleaseLog:
    """Read the release log in this file; raise InputError if the file is missing or cannot be read."""
    try:
        return parse_log(path.read_text(encoding="utf-8"), str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"expected a release log, found none: {path}",
            hint="give the folder of a run that was started with --privacy",
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: expected a release log, found a file that is not text: {error}",
            hint="restore the file from a copy",
        ) from None


def start_or_resume_log(path: Path, budget: Budget) -> ReleaseLog:
    """Create or read the release log of a run; raise InputError if a resumed run has another budget than before."""
    with _lock_log(path):
        if not path.exists():
            _create_log(path, [format_budget_line(budget)])
        log = read_log(path)
    if log.budget != budget:
        raise InputError(
            f"{path}: the run started with epsilon {log.budget.epsilon:g}, delta {log.budget.delta:g}, and cannot "
            f"go on with another budget: epsilon {budget.epsilon:g}, delta {budget.delta:g}",
            hint="resume it with the budget that it started with, or start a new run",
        )
    return log


def record_release(path: Path, upcoming: Event) -> ReleaseLog:
    """Add a release to a run's log on disk; raise BudgetSpentError if the budget does not cover the release.

    Call this before the noisy message or sum is sent. If the process crashes in between, budget is wasted; in the other
    order, a release would stay unrecorded.
    """
    with _lock_log(path):
        log = read_log(path)
        together = append_within_budget(log.events, upcoming, log.budget)
        _append_line(path, format_event_line(upcoming))
    return ReleaseLog(log.budget, together)


@dataclass
class ReleaseRecorder:
    """Records the releases of one run: in the release log at `path`, or in memory if `path` is None."""

    path: Path | None = None
    events: tuple[Event, ...] = ()

    def record(self, upcoming: Event, budget: Budget) -> None:
        """Record a release before it is sent; raise BudgetSpentError if the budget does not cover it."""
        if self.path is None:
            self.events = append_within_budget(self.events, upcoming, budget)
        else:
            self.events = record_release(self.path, upcoming).events


def record_site_release(path: Path, upcoming: Event, limit: Budget, earlier: Sequence[Event]) -> ReleaseLog:
    """Add a release to a site's log of all runs; raise BudgetSpentError if all releases together exceed the limit.

    `limit` is the site's present limit; `earlier` are the releases from before the log existed.
    """
    with _lock_log(path):
        log = _read_or_create_log(path, limit, earlier)
        together = append_within_site_limit(log.events, upcoming, limit)
        _append_line(path, format_event_line(upcoming))
    return ReleaseLog(limit, together)


def record_site_release_unchecked(path: Path, upcoming: Event, budget: Budget, earlier: Sequence[Event]) -> ReleaseLog:
    """Add a release to the log of a site that has set no limit; the release counts if the site sets a limit later.

    A new log begins with the run's `budget` and with `earlier`, the releases from before the log existed.
    """
    with _lock_log(path):
        log = _read_or_create_log(path, budget, earlier)
        _append_line(path, format_event_line(upcoming))
    return ReleaseLog(budget, (*log.events, upcoming))


def record_unbounded_losses(path: Path, events: Sequence[UnboundedLoss], earlier: Sequence[Event]) -> None:
    """Add unbounded privacy losses to a site's log of all runs, unless the log has one with the same reason.

    `earlier` are the releases from before the log existed.
    """
    with _lock_log(path):
        if not path.exists():
            _create_log(path, [format_budget_line(None), *map(format_event_line, earlier)])
        known = {event.reason for event in read_log(path).events if isinstance(event, UnboundedLoss)}
        for event in events:
            if event.reason not in known:
                _append_line(path, format_event_line(event))
                known.add(event.reason)


def restore_log(path: Path, source: Path, missing: Sequence[Event]) -> None:
    """Write a new release log, atomically, from the backup `source` and the releases that the backup lacks."""
    lines, cut_off = _split_lines(source.read_text(encoding="utf-8"))
    with _lock_log(path):
        _create_log(path, [*lines, *map(format_event_line, (*cut_off, *missing))])


def _read_or_create_log(path: Path, budget: Budget, earlier: Sequence[Event]) -> ReleaseLog:
    """Read a site's log, or create it with the `earlier` releases; append `budget` if the log states another."""
    if not path.exists():
        _create_log(path, [format_budget_line(budget), *map(format_event_line, earlier)])
    log = read_log(path)
    if log.stated_budget != budget:
        _append_line(path, format_budget_line(budget))
    return log


def _lock_log(path: Path) -> AbstractContextManager[None]:
    """Lock the log, so that two processes cannot both spend the rest of the budget."""
    return lock_file(path.with_name(f"{path.name}.lock"))


def _create_log(path: Path, lines: Sequence[str]) -> None:
    """Write a new log atomically: an incomplete log would understate the privacy that was spent."""
    write_file(path, "".join(f"{line}\n" for line in lines))


def _append_line(path: Path, line: str) -> None:
    """Add one line to the log. If the last line was cut off, first replace it with an unbounded privacy loss."""
    lines, cut_off = _split_lines(path.read_text(encoding="utf-8", errors="replace"))
    if cut_off:
        _create_log(path, [*lines, *map(format_event_line, cut_off)])
    append_line(path, line)


def _split_lines(text: str) -> tuple[list[str], list[UnboundedLoss]]:
    """Return the complete lines, and an unbounded privacy loss if the last line is cut off."""
    *lines, rest = text.split("\n")
    reason = f"line {len(lines) + 1} of its record was cut off after {len(rest)} characters"
    return lines, [UnboundedLoss(0, "unknown", reason)] if rest else []


def _parse_line(line: str, where: str, *, first: bool) -> Budget | Event | None:
    """Parse the budget or the event in a line; return None if the first line states that there is no budget yet."""
    try:
        entry = json.loads(line)
        if not isinstance(entry, dict):
            raise TypeError(f"expected a JSON object, found: {line[:80]}")
        return _convert_to_budget_or_event(entry, first=first)
    except InputError as error:
        raise InputError(f"{where}: {error.message}", hint=error.hint) from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{where}: cannot read the budget or event in this line: {error}",
            hint="use the version of fedlog that wrote this line: to skip an event would understate the privacy spent",
        ) from None


def _convert_to_budget_or_event(entry: dict[str, object], *, first: bool) -> Budget | Event | None:
    name = str(entry.pop("event", None))
    if name == "budget" or (first and name == "no budget"):
        if (version := entry.pop("version", None)) != _VERSION:
            raise ValueError(f"expected version {_VERSION} of the release log, found: {version!r}")
        if name == "budget":
            return _convert_to_dataclass(entry, Budget)
        _require_exact_fields(entry, set())
        return None
    if first or name not in _EVENTS:
        raise ValueError(f"expected event {'budget' if first else ' or '.join(_EVENTS)!r}, found: {name!r}")
    if name == Release.kind:
        entry = {"calibration": Calibration.EXACT, **entry}  # the first records do not name it
    return _convert_to_dataclass(entry, _EVENTS[name])


def _convert_to_dataclass(entry: dict[str, object], kind: type[_BudgetOrEvent]) -> _BudgetOrEvent:
    _require_exact_fields(entry, {field.name for field in fields(kind)})  # type: ignore[arg-type]
    return msgspec.convert(entry, kind)


def _require_exact_fields(entry: dict[str, object], names: set[str]) -> None:
    """Raise ValueError unless the entry has exactly these fields."""
    if entry.keys() != names:
        raise ValueError(f"expected the fields {sorted(names)}, missing or unknown: {sorted(entry.keys() ^ names)}")
