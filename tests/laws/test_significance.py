"""What must hold of the statistics over seeds whatever the numbers are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.engine.simulator import RoundRecord
from fedlog.experiments.cost import cost_to, threshold_by_rule
from fedlog.experiments.records import Summary
from fedlog.experiments.significance import (
    LEVEL,
    Mean,
    Side,
    compare,
    compare_all,
    holm,
    seeds_needed,
    shift,
    signed_rank_p,
)

numbers = st.integers(-50, 50).map(lambda n: n / 8)  # exact in binary, and ties and zeros do occur
samples = st.lists(numbers, min_size=1, max_size=11)
law = settings(deadline=None, max_examples=60)


@law
@given(samples)
def test_the_two_tails_overlap_in_what_was_seen(differences: list[float]) -> None:
    greater, less = (signed_rank_p(differences, side) for side in Side)
    assert greater + less >= 1 - 1e-12
    assert 0 < min(greater, less) <= max(greater, less) <= 1


@law
@given(samples)
def test_mirrored_differences_swap_the_tails(differences: list[float]) -> None:
    mirrored = [-value for value in differences]
    assert signed_rank_p(mirrored, Side.GREATER) == signed_rank_p(differences, Side.LESS)


@law
@given(st.integers(1, 12), st.floats(0.01, 10))
def test_no_outcome_is_below_the_smallest_p(n: int, step: float) -> None:
    all_above = [step * (at + 1) for at in range(n)]
    assert signed_rank_p(all_above, Side.GREATER) == pytest.approx(2.0**-n)


@law
@given(st.integers(1, 40), st.sampled_from([0.05, 0.01, 0.001]))
def test_the_seeds_needed_are_enough_and_one_fewer_is_not(comparisons: int, level: float) -> None:
    n = seeds_needed(level, comparisons)
    assert comparisons * 2.0**-n < level
    assert comparisons * 2.0 ** -(n - 1) >= level


@law
@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.floats(0, 1), min_size=1))
def test_holm_never_lowers_and_keeps_the_order(p_values: dict[str, float]) -> None:
    adjusted = holm(p_values)
    assert adjusted.keys() == p_values.keys()
    for name, p in p_values.items():
        assert p <= adjusted[name] <= min(1.0, len(p_values) * p) + 1e-12
        for other, q in p_values.items():
            assert p > q or adjusted[name] <= adjusted[other]


@law
@given(samples, numbers)
def test_a_shift_moves_with_the_differences_and_lies_in_its_interval(differences: list[float], by: float) -> None:
    found, moved = shift(differences), shift([value + by for value in differences])
    assert moved.estimate == pytest.approx(found.estimate + by)
    assert (found.low is None) == (len(differences) < 6)
    if found.low is not None:
        assert found.low <= found.estimate <= found.high
        assert found.coverage >= 0.95
        assert moved.low == pytest.approx(found.low + by)


def test_too_few_seeds_give_an_effect_and_no_p_value() -> None:
    few = compare({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert few.pairs == 2
    assert few.p is None
    assert few.shift is not None
    assert few.shift.estimate == 1.5
    enough = compare({s: 1.0 + s for s in range(7)}, dict.fromkeys(range(7), 0.0))
    assert enough.p == pytest.approx(2.0**-7)
    assert enough.significant
    assert enough.side is Side.GREATER
    assert compare({0: 1.0}, {1: 1.0}).pairs == 0


def test_the_correction_is_left_out_where_it_could_not_be_passed() -> None:
    reference = dict.fromkeys(range(7), 0.0)
    rows = {"ref": reference, **{name: {seed: -1.0 - seed for seed in range(7)} for name in "abc"}}
    found = compare_all(rows, "ref")
    assert set(found) == set("abc")
    assert all(c.p == pytest.approx(2.0**-7) and c.p < LEVEL and c.p_holm is None for c in found.values())
    alone = compare_all({"ref": reference, "a": rows["a"]}, "ref")
    assert alone["a"].p_holm == pytest.approx(2.0**-7)


@law
@given(st.lists(numbers, min_size=2, max_size=8))
def test_a_mean_over_seeds_has_an_error_that_copies_do_not_shrink_to_nothing(values: list[float]) -> None:
    found = Mean.of(values)
    assert min(values) - 1e-12 <= found.value <= max(values) + 1e-12
    assert (found.error == 0) == (len(set(values)) == 1)
    assert Mean.of(values[:1]).error is None


def _run(accuracies: list[float], opening: int) -> tuple[list[RoundRecord], Summary]:
    rounds = [
        RoundRecord(
            round=at + 1,
            accuracy_mean_over_clients=accuracy,
            correct_per_client=[],
            records_per_client=[],
            participants=1,
            bits_up=100,
            bits_down=10,
            bits_by_kind={},
            observed={},
            refused={},
            seconds=0.0,
        )
        for at, accuracy in enumerate(accuracies)
    ]
    n = len(rounds)
    best = max(rounds, key=lambda record: record.accuracy_mean_over_clients)
    summary = Summary(
        method="m",
        data="d",
        seed=0,
        digest="x",
        rounds=n,
        accuracy_mean_over_clients=accuracies[-1],
        accuracy_per_client=[],
        accuracy_after_closing=None,
        best_round=best.round,
        best_accuracy=best.accuracy_mean_over_clients,
        bits_up=100 * n,
        bits_down=10 * n + opening,
        seconds=0.0,
        run_dir=".",
    )
    return rounds, summary


@law
@given(st.lists(st.integers(0, 100).map(lambda n: n / 100), min_size=1, max_size=12), st.integers(0, 100))
def test_cost_stops_at_the_first_round_that_reaches_the_threshold(accuracies: list[float], per_cent: int) -> None:
    rounds, summary = _run(accuracies, opening=7)
    cost = cost_to(per_cent / 100, rounds, summary)
    assert cost.reached == (max(accuracies) >= per_cent / 100)
    if cost.reached:
        assert all(accuracy < per_cent / 100 for accuracy in accuracies[: cost.round - 1])
    else:
        assert cost.round == accuracies.index(max(accuracies)) + 1
    assert (cost.bits_up, cost.bits_down) == (100 * cost.round, 10 * cost.round + 7)
    assert cost.both == 110 * cost.round + 7


@law
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_the_papers_threshold_is_reached_by_everyone_and_the_next_is_not(tenths: list[int]) -> None:
    accuracies = [tenth / 1000 for tenth in tenths]
    threshold = threshold_by_rule(accuracies)
    assert threshold == math.floor(min(tenths) / 10)
    assert threshold_by_rule([]) is None
