"""The privacy that all runs of one site cost together, whatever each of them promised.

A run protects records or whole clients. A site may take part in one run of each kind; both reveal something about its
records, so here they are added up as guarantees for single records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedlog.errors import InputError
from fedlog.privacy.accounting import Event, Release, Spending, add_up, add_up_under, allow, check_covered, promises_of
from fedlog.privacy.guarantee import Budget, Calibration, Trust, Unit

_WEAKEST_FIRST = (Trust.CENTRAL, Trust.DISTRIBUTED, Trust.LOCAL)


def add_up_across_runs(releases: Sequence[Event], delta: float) -> Spending:
    """The epsilon at `delta` after each release of all runs of a site, and the guarantee of them all.

    If the runs promised different things, it is a guarantee for single records under the weakest trust among them.
    """
    if len(promises := promises_of(releases)) < 2:
        return add_up(releases, delta)
    weakest = min((trust for _, trust in promises), key=_WEAKEST_FIRST.index)
    return add_up_under(releases, for_one_record(releases), (Unit.RECORD, weakest), delta)


def allow_across_runs(releases: Sequence[Event], upcoming: Event, budget: Budget) -> tuple[Event, ...]:
    """The releases of all runs of a site with the upcoming one, if its limit covers them; BudgetSpentError if not."""
    together = (*releases, upcoming)
    if len(promises_of(together)) == 1:
        return allow(releases, upcoming, budget)
    check_covered(for_one_record(together), Calibration.EXACT, budget)
    return together


def for_one_record(releases: Sequence[Event]) -> tuple[Event, ...]:
    """Convert releases of different promises to the sensitivity of one record, an upper bound for all of them.

    Local noise for a whole client hides any change of its data, so also that of one record. In a promise about one
    client more or less, a changed record replaces one message of norm at most S by another: the sum moves by 2S. No
    release counts less than it does alone, so the promises of single runs are bounded too.
    """
    if any(unit is Unit.PAPER for unit, _ in promises_of(releases)):
        raise InputError("runs in mode paper have no guarantee that could be added to those of other runs")
    return tuple(
        replace(release, sensitivity=2 * release.sensitivity)
        if isinstance(release, Release) and release.unit is Unit.CLIENT and release.trust is not Trust.LOCAL
        else release
        for release in releases
    )
