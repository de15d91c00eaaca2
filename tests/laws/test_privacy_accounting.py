"""Laws of the release log: it adds up, it refuses what it does not know, and it cannot be overdrawn."""

from __future__ import annotations

import fcntl
import json
import math
import os
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.errors import InputError, RunError
from fedlog.privacy.accounting import (
    BudgetSpentError,
    NoiseKind,
    RandomSource,
    Release,
    TrainingRound,
    append_within_budget,
    bound_distance_from_gaussian,
    compute_spending,
)
from fedlog.privacy.calibration import compute_epsilon, compute_sigma_by_paper_formula, find_smallest_sigma
from fedlog.privacy.discrete import bound_rounding_divergence, bound_share_divergence, choose_grid
from fedlog.privacy.guarantee import Budget, Calibration, Guarantee, Trust, Unit
from fedlog.privacy.release_log import (
    append_within_site_limit,
    compute_spending_across_runs,
    format_budget_line,
    format_event_line,
    parse_log,
    read_log,
    record_release,
    record_site_release,
    record_site_release_unchecked,
    start_or_resume_log,
)


def release(sigma: float, *, round: int = 1, sensitivity: float = 1.0, unit: Unit = Unit.RECORD) -> Release:  # noqa: A002
    return Release(
        round=round,
        exchange="statistics",
        unit=unit,
        trust=Trust.CENTRAL,
        noise=NoiseKind.FLOAT,
        entropy=RandomSource.SEED,
        sigma=sigma,
        sensitivity=sensitivity,
        coordinates=510,
    )


def discrete(sigma: float, *, shares: int = 1) -> Release:
    return replace(
        release(sigma),
        noise=NoiseKind.DISCRETE,
        entropy=RandomSource.SYSTEM,
        grid=choose_grid(sigma / shares**0.5),
        trust=Trust.DISTRIBUTED,
        shares=shares,
    )


@settings(deadline=None, max_examples=50)
@given(
    st.floats(0.05, 20.0),
    st.floats(1e-12, 0.1),
    st.integers(1, 60),
    st.floats(0.1, 50.0),
    st.sampled_from([Unit.RECORD, Unit.CLIENT]),
)
def test_a_plan_of_k_releases_is_allowed_exactly_k(
    epsilon: float, delta: float, k: int, sensitivity: float, unit: Unit
) -> None:
    budget = Budget(epsilon, delta)
    sigma = find_smallest_sigma(budget, k, sensitivity)
    log: tuple[Release, ...] = ()
    for number in range(k):
        log = append_within_budget(log, release(sigma, round=number, sensitivity=sensitivity, unit=unit), budget)
    with pytest.raises(RunError, match="does not cover"):
        append_within_budget(log, release(sigma, round=k, sensitivity=sensitivity, unit=unit), budget)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.05, 20.0), st.floats(1e-12, 0.1), st.integers(1, 60), st.sampled_from(Calibration))
def test_mode_paper_is_held_to_the_formula_that_its_noise_came_from(
    epsilon: float, delta: float, k: int, formula: Calibration
) -> None:
    budget = Budget(epsilon, delta)
    sigma = (compute_sigma_by_paper_formula if formula is Calibration.PAPER else find_smallest_sigma)(budget, k, 1.0)
    *before, last, more = (
        replace(release(sigma, round=number, unit=Unit.PAPER), calibration=formula) for number in range(k + 1)
    )
    log = append_within_budget(before, last, budget)
    assert len(log) == k
    with pytest.raises(RunError, match="does not cover"):
        append_within_budget(log, more, budget)


def test_the_papers_formula_holds_no_run_that_promises_something() -> None:
    budget = Budget(9.0, 1e-5)
    sigma = find_smallest_sigma(budget, 3, 1.0)
    for change in ({"unit": Unit.RECORD}, {"calibration": Calibration.EXACT}):
        by_paper = {"unit": Unit.PAPER, "calibration": Calibration.PAPER} | change
        log = [replace(release(sigma), **by_paper)] * 3  # type: ignore[arg-type]
        with pytest.raises(RunError, match="does not cover"):
            append_within_budget(log, log[0], budget)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.5, 100.0), min_size=1, max_size=12), st.floats(1e-9, 0.1))
def test_spending_rises_with_each_release_whatever_their_order(sigmas: list[float], delta: float) -> None:
    forward = compute_spending([release(sigma) for sigma in sigmas], delta)
    backward = compute_spending([release(sigma) for sigma in reversed(sigmas)], delta)
    assert list(forward.epsilons) == sorted(forward.epsilons)
    assert forward.epsilons[-1] == pytest.approx(backward.epsilons[-1], rel=1e-9, abs=1e-9)


def test_what_fits_a_small_epsilon_fits_a_large_one_whatever_the_grid_costs_there() -> None:
    # (1 + e^25) times the distance of the grid is more than delta; at epsilon 20 it is not.
    sigma = find_smallest_sigma(Budget(20.0, 1e-5), 2, 1.0, 2e-15)
    assert len(append_within_budget([discrete(sigma)], discrete(sigma), Budget(25.0, 1e-5))) == 2
    assert math.exp(25) * bound_distance_from_gaussian([discrete(sigma)] * 2) > 1e-5


def test_equal_releases_compose_as_the_formula_says() -> None:
    spending = compute_spending([release(7.0, sensitivity=2.0)] * 30, 1e-5)
    assert spending.epsilons[-1] == pytest.approx(compute_epsilon(math.sqrt(30) * 2.0 / 7.0, 1e-5), rel=1e-9)
    assert spending.guarantee is not None
    assert spending.guarantee.releases == 30


def test_the_grid_of_discrete_noise_is_accounted_for() -> None:
    fine = [discrete(5.0, shares=10)] * 100
    assert 0 < bound_distance_from_gaussian(fine) < 1e-10
    coarse = [replace(discrete(5.0), grid=1.0)] * 100
    assert bound_distance_from_gaussian(coarse) > 1e-3
    assert compute_spending(coarse, 1e-5).guarantee.epsilon is None  # type: ignore[union-attr]
    # Shares of one step each are not yet the Gaussian that they add up to, in any coordinate of any release.
    few = [replace(discrete(4.0, shares=16), grid=1.0, coordinates=7)] * 3
    apart = 3 * 7 * math.expm1(bound_share_divergence(1.0, 16))
    assert bound_distance_from_gaussian(few) == pytest.approx(
        apart + math.sqrt(3 * 7 * bound_rounding_divergence(4.0) / 2), rel=1e-9
    )
    steps = TrainingRound(
        1, "body", Trust.LOCAL, NoiseKind.DISCRETE, RandomSource.SYSTEM, 5.0, 2.0, 0.1, 20, 300, grid=1.0
    )
    assert bound_distance_from_gaussian([steps] * 2) == pytest.approx(
        math.sqrt(2 * 20 * 300 * bound_rounding_divergence(10.0) / 2), rel=1e-9
    )
    wrapped = [replace(discrete(5.0), wrap_probability=1e-6)] * 10
    assert bound_distance_from_gaussian(wrapped) == pytest.approx(1e-5, rel=1e-3)


def test_simulated_noise_says_that_it_hides_nothing() -> None:
    assert any("not private" in caveat for caveat in compute_spending([release(1.0)], 1e-5).caveats)
    assert compute_spending([discrete(1.0)], 1e-5).caveats == ()
    once = compute_spending([discrete(1.0), replace(discrete(1.0), entropy=RandomSource.SEED), discrete(1.0)], 1e-5)
    assert any("not private" in caveat for caveat in once.caveats)


def test_the_papers_mode_states_no_epsilon() -> None:
    guarantee = compute_spending([release(100.0, unit=Unit.PAPER)] * 4, 0.01).guarantee
    assert guarantee is not None
    assert guarantee.epsilon is None
    assert "no formal guarantee" in str(guarantee)


def test_mixed_promises_are_refused() -> None:
    with pytest.raises(InputError, match="one unit"):
        compute_spending([release(1.0), release(1.0, unit=Unit.CLIENT)], 1e-5)


def _ask(path: Path, count: int) -> None:
    for _ in range(count):
        with suppress(RunError):
            record_release(path, release(find_smallest_sigma(Budget(1.0, 1e-5), 5, 1.0)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_that_ask_at_once_get_no_more_than_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "privacy.jsonl"
    start_or_resume_log(path, Budget(1.0, 1e-5))
    asking = [get_context("fork").Process(target=_ask, args=(path, 4)) for _ in range(4)]
    for process in asking:
        process.start()
    for process in asking:
        process.join()
    assert len(read_log(path).releases) == 5


def _ask_aloud(path: Path, upcoming: Release, said: Connection) -> None:
    """Record a release; say which lock is asked for before it is asked for, and how it went."""
    ask = fcntl.flock

    def aloud(descriptor: int, operation: int) -> None:
        fcntl.flock = ask  # it asks again and again
        said.send((os.fstat(descriptor).st_ino, operation & fcntl.LOCK_EX))
        ask(descriptor, operation)

    fcntl.flock = aloud  # in this process alone
    try:
        record_release(path, upcoming)
        said.send("recorded")
    except RunError:
        said.send("refused")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_who_comes_second_waits_and_sees_what_the_first_has_written(tmp_path: Path) -> None:
    path, budget = tmp_path / "privacy.jsonl", Budget(1.0, 1e-5)
    only = release(find_smallest_sigma(budget, 1, 1.0))
    start_or_resume_log(path, budget)
    hears, says = get_context("fork").Pipe(duplex=False)
    with (tmp_path / "privacy.jsonl.lock").open("r+") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        second = get_context("fork").Process(target=_ask_aloud, args=(path, only, says))
        second.start()
        says.close()  # so that the end of the other process is heard
        assert hears.recv() == (os.fstat(first.fileno()).st_ino, fcntl.LOCK_EX)
        # Whatever the second has read by now is not what counts.
        with path.open("a") as log:
            log.write(format_event_line(only) + "\n")
        fcntl.flock(first, fcntl.LOCK_UN)  # closing would not do: the other process has inherited it
    assert hears.recv() == "refused"
    second.join()
    assert read_log(path).releases == (only,)


def test_a_release_is_on_the_disk_and_not_on_its_way_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = path, across = tmp_path / "privacy.jsonl", tmp_path / "across.jsonl"
    forced: dict[int, object] = {}
    force = os.fsync

    def seen(thing: Path) -> object:
        return {below.name for below in thing.iterdir()} if thing.is_dir() else thing.read_bytes()

    def noted(descriptor: int) -> None:
        force(descriptor)
        forced[os.fstat(descriptor).st_ino] = seen(Path(f"/dev/fd/{descriptor}").resolve())

    monkeypatch.setattr(os, "fsync", noted)
    budget = Budget(1.0, 1e-5)
    start_or_resume_log(path, budget)
    for number in range(2):
        upcoming = release(100.0, round=number)
        for record in (
            lambda one: record_release(path, one),
            lambda one: record_site_release(across, one, budget, ()),
            lambda one: record_site_release_unchecked(across, one, budget, ()),
        ):
            record(upcoming)
            assert all(forced[log.stat().st_ino] == seen(log) for log in paths if log.exists())
    names = forced[tmp_path.stat().st_ino]  # a file whose name is lost is lost
    assert {log.name for log in paths} <= names  # type: ignore[operator]


def test_a_record_from_before_formulas_were_named_is_read(tmp_path: Path) -> None:
    entry = json.loads(format_event_line(release(3.0)))
    del entry["calibration"]
    text = '{"event": "budget", "version": 1, "epsilon": 1.0, "delta": 1e-05}\n' + json.dumps(entry) + "\n"
    assert parse_log(text, "log").releases == (release(3.0),)
    (tmp_path / "privacy.jsonl").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "privacy.jsonl", tmp_path / "privacy.jsonl" / "below"):
        with pytest.raises(InputError, match=r"expected a release log, found (none|a file that is not text)"):
            read_log(path)


@pytest.mark.parametrize(
    "change",
    [{"sigma": 0.0}, {"sensitivity": -1.0}, {"round": -1}, {"grid": 0.1}, {"shares": 5}, {"wrap_probability": 1.0}],
)
def test_impossible_releases_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(InputError):
        replace(release(1.0), **change)  # type: ignore[arg-type]


@given(st.sampled_from([release(3.0), discrete(2.5, shares=7), release(1.0, unit=Unit.PAPER)]))
def test_a_release_survives_the_log(one: Release) -> None:
    text = '{"event": "budget", "version": 1, "epsilon": 1.0, "delta": 1e-05}\n' + format_event_line(one) + "\n"
    assert parse_log(text, "log").releases == (one,)


def test_a_resumed_run_is_held_to_what_it_has_spent(tmp_path: Path) -> None:
    path = tmp_path / "privacy.jsonl"
    budget = Budget(1.0, 1e-5)
    sigma = find_smallest_sigma(budget, 3, 1.0)
    for number in range(3):
        start_or_resume_log(path, budget)
        record_release(path, release(sigma, round=number))
    assert len(start_or_resume_log(path, budget).releases) == 3
    with pytest.raises(RunError):
        record_release(path, release(sigma, round=2))
    assert len(read_log(path).releases) == 3
    with pytest.raises(InputError, match="another budget"):
        start_or_resume_log(path, Budget(8.0, 1e-5))


def _line(**changes: object) -> str:
    return json.dumps({**json.loads(format_event_line(release(3.0))), **changes})


@pytest.mark.parametrize(
    "line",
    [
        _line(event="exact-count"),
        _line(extra=1),
        _line(noise="laplace"),
        _line(sigma="3"),
        _line(sigma=float("nan")),
        _line(round=1.5),
        _line(shares=True),
        "[]",
        "{",
        "",
    ],
)
def test_an_event_that_is_not_understood_is_refused_with_its_line(line: str) -> None:
    text = '{"event": "budget", "version": 1, "epsilon": 1.0, "delta": 1e-05}\n' + line + "\n"
    with pytest.raises(InputError, match="line 2"):
        parse_log(text, "run/privacy.jsonl")


@pytest.mark.parametrize("whole", [0, 1])
def test_a_line_that_was_cut_off_counts_as_a_release_that_nothing_bounds(whole: int) -> None:
    line = format_event_line(release(1000.0))
    text = format_budget_line(Budget(1.0, 1e-5)) + "\n" + f"{line}\n" * whole + line[:-4]
    log = parse_log(text, "log")
    assert len(log.events) == whole + 1
    with pytest.raises(BudgetSpentError, match="no guarantee: line"):
        append_within_budget(log.events, release(1000.0), log.budget)
    with pytest.raises(BudgetSpentError):
        append_within_site_limit(log.events, release(1000.0), log.budget)
    for found in (compute_spending(log.events, 1e-5), compute_spending_across_runs(log.events, 1e-5)):
        assert found.epsilons[-1] == math.inf
        assert found.guarantee is not None
        assert found.guarantee.epsilon is None
        assert found.guarantee.releases == whole + 1
        assert any("cut off" in caveat for caveat in found.caveats)


def test_what_is_counted_after_a_cut_off_line_leaves_it_counted(tmp_path: Path) -> None:
    path, budget = tmp_path / "privacy.jsonl", Budget(1.0, 1e-5)
    line = format_event_line(release(1000.0))
    path.write_text(f"{format_budget_line(budget)}\n{line}\n{line[:20]}")
    torn = read_log(path).events
    after = record_site_release_unchecked(path, release(1000.0), budget, ())
    assert after.events == (*torn, release(1000.0)) == read_log(path).events
    with pytest.raises(BudgetSpentError):
        record_site_release(path, release(1000.0), budget, ())
    assert path.read_text().count("\n") == 4


@given(st.floats(1e-6, 1e6))
def test_the_epsilon_that_is_shown_is_never_below_the_one_that_was_spent(epsilon: float) -> None:
    told = str(Guarantee(epsilon, 1e-5, Unit.RECORD, Trust.LOCAL, 1))
    shown = float(told.split()[1])
    assert epsilon <= shown * (1 + 1e-9)
    assert shown <= epsilon * 1.001001  # the next number of four digits
