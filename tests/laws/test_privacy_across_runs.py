"""All runs of a site together: never less than any part of them, whatever each of them promised."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.cli.main import main
from fedlog.errors import InputError
from fedlog.privacy.accounting import (
    BudgetSpentError,
    NoiseKind,
    RandomSource,
    Release,
    UnboundedLoss,
    append_within_budget,
    compute_spending,
)
from fedlog.privacy.guarantee import Budget, Trust, Unit
from fedlog.privacy.release_log import (
    append_within_site_limit,
    compute_spending_across_runs,
    read_log,
    record_release,
    record_site_release,
    record_site_release_unchecked,
    record_unbounded_losses,
    start_or_resume_log,
)

DELTA = 1e-5


def release(unit: Unit, trust: Trust, sigma: float = 2.0, number: int = 1) -> Release:
    return Release(number, "statistics", unit, trust, NoiseKind.FLOAT, RandomSource.SEED, sigma, 1.0, 10)


releases = st.lists(
    st.builds(release, st.sampled_from([Unit.RECORD, Unit.CLIENT]), st.sampled_from(list(Trust)), st.floats(0.5, 20.0)),
    min_size=1,
    max_size=6,
)


def epsilon(events: list[Release]) -> float:
    return compute_spending_across_runs(events, DELTA).epsilons[-1]


@settings(deadline=None, max_examples=60)
@given(releases)
def test_all_runs_together_have_spent_at_least_what_each_promise_has(events: list[Release]) -> None:
    together = epsilon(events)
    for promise in {(event.unit, event.trust) for event in events}:
        own = [event for event in events if (event.unit, event.trust) == promise]
        assert together >= compute_spending(own, DELTA).epsilons[-1]
    for at in range(1, len(events)):
        assert together >= epsilon(events[:at])


def test_one_record_moves_a_clients_message_twice_where_a_client_more_or_less_is_the_neighbour() -> None:
    """Gaussian releases compose by the root of the sum of squares; a mixed log counts 2S for a client's message."""
    rows = release(Unit.RECORD, Trust.LOCAL)
    for trust, sigma in ((Trust.CENTRAL, 1.0), (Trust.DISTRIBUTED, 1.0), (Trust.LOCAL, 2.0)):
        mixed = [rows, release(Unit.CLIENT, trust)]
        assert epsilon(mixed) == pytest.approx(
            compute_spending([rows, release(Unit.RECORD, Trust.LOCAL, sigma)], DELTA).epsilons[-1]
        )
        guarantee = compute_spending_across_runs(mixed, DELTA).guarantee
        assert guarantee is not None
        assert (guarantee.unit, guarantee.trust) == (Unit.RECORD, trust)  # none of these is stronger than local noise
    # Several runs with one promise are as one run.
    same = [release(Unit.CLIENT, Trust.CENTRAL)] * 2
    assert epsilon(same) == compute_spending(same, DELTA).epsilons[-1]


def test_a_run_keeps_to_one_promise_and_no_limit_takes_the_papers_formula() -> None:
    rows, whole = release(Unit.RECORD, Trust.LOCAL), release(Unit.CLIENT, Trust.LOCAL)
    with pytest.raises(InputError, match="one unit and one trust model"):
        append_within_budget([rows], whole, Budget(100.0, DELTA))
    with pytest.raises(InputError, match="a run with --privacy paper has no guarantee"):
        append_within_site_limit([rows], release(Unit.PAPER, Trust.LOCAL), Budget(100.0, DELTA))


def test_a_log_of_all_runs_goes_on_under_another_limit_with_everything_in_it(tmp_path: Path) -> None:
    path = tmp_path / "privacy.jsonl"
    rows, whole = release(Unit.RECORD, Trust.LOCAL), release(Unit.CLIENT, Trust.CENTRAL)
    record_site_release_unchecked(path, rows, Budget(1.0, DELTA), [whole])  # above it: nobody had set a limit
    assert list(read_log(path).events) == [whole, rows]
    needed = epsilon([whole, rows, whole])
    with pytest.raises(BudgetSpentError):
        record_site_release(path, whole, Budget(0.99 * needed, DELTA), [])
    assert list(read_log(path).events) == [whole, rows]
    found = record_site_release(
        path, whole, Budget(1.01 * needed, DELTA), [rows] * 9
    )  # there is a log: nothing earlier
    assert found == read_log(path)
    assert list(found.events) == [whole, rows, whole]
    assert found.budget == Budget(1.01 * needed, DELTA)


def test_a_runs_own_budget_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "privacy.jsonl"
    start_or_resume_log(path, Budget(8.0, DELTA))
    record_release(path, release(Unit.RECORD, Trust.LOCAL))
    with pytest.raises(InputError, match="cannot go on with another budget"):
        start_or_resume_log(path, Budget(9.0, DELTA))


def test_an_unbounded_loss_is_recorded_once_for_each_reason(tmp_path: Path) -> None:
    path = tmp_path / "privacy.jsonl"
    first, second = UnboundedLoss(1, "statistics", "no noise"), UnboundedLoss(2, "statistics", "no noise")
    other = UnboundedLoss(3, "report", "exact figures")
    for _ in range(2):
        record_unbounded_losses(path, [first, second, other], ())
        assert read_log(path).events == (first, other)


@pytest.mark.parametrize("delta", ["0", "-1", "1", "2", "nan"])
def test_epsilon_is_stated_at_no_delta_that_is_none_however_many_promises_there_are(
    tmp_path: Path, delta: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "privacy.jsonl"
    for whole in (release(Unit.CLIENT, Trust.LOCAL), release(Unit.RECORD, Trust.LOCAL)):
        record_site_release_unchecked(path, whole, Budget(8.0, DELTA), [])
        assert main(["privacy", "spend", str(tmp_path), "--delta", delta]) == 2
        assert "delta must be above 0 and below 1" in capsys.readouterr().err
