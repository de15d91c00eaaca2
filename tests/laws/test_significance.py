"""Laws of the statistics over seeds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run.records import Summary
from fedlog.experiments.tables.finished_cells import RunResult, choose_threshold
from fedlog.experiments.tables.significance import (
    LEVEL,
    Alternative,
    Mean,
    compare_all_with_reference,
    compare_with_reference,
    compute_signed_rank_p_value,
    correct_by_holm,
    count_differing_pairs_needed,
    estimate_paired_ratio,
    estimate_shift,
)

numbers = st.integers(-50, 50).map(lambda n: n / 8)  # exact in binary, and ties and zeros do occur
samples = st.lists(numbers, min_size=1, max_size=11)
law = settings(deadline=None, max_examples=60)


@law
@given(samples)
def test_the_two_tails_overlap_in_what_was_seen(differences: list[float]) -> None:
    greater, less = (compute_signed_rank_p_value(differences, side) for side in Alternative)
    assert greater + less >= 1 - 1e-12
    assert 0 < min(greater, less) <= max(greater, less) <= 1


@law
@given(samples)
def test_mirrored_differences_swap_the_tails(differences: list[float]) -> None:
    mirrored = [-value for value in differences]
    assert compute_signed_rank_p_value(mirrored, Alternative.GREATER) == compute_signed_rank_p_value(
        differences, Alternative.LESS
    )


@law
@given(st.integers(1, 12), st.floats(0.01, 10))
def test_no_outcome_is_below_the_smallest_p(n: int, step: float) -> None:
    all_above = [step * (at + 1) for at in range(n)]
    assert compute_signed_rank_p_value(all_above, Alternative.GREATER) == pytest.approx(2.0**-n)


@law
@given(st.integers(1, 40), st.sampled_from([0.05, 0.01, 0.001]))
def test_the_seeds_needed_are_enough_and_one_fewer_is_not(comparisons: int, level: float) -> None:
    n = count_differing_pairs_needed(level, comparisons)
    assert comparisons * 2.0**-n < level
    assert comparisons * 2.0 ** -(n - 1) >= level


@law
@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.floats(0, 1), min_size=1))
def test_holm_never_lowers_and_keeps_the_order(p_values: dict[str, float]) -> None:
    adjusted = correct_by_holm(p_values)
    assert adjusted.keys() == p_values.keys()
    for name, p in p_values.items():
        assert p <= adjusted[name] <= min(1.0, len(p_values) * p) + 1e-12
        for other, q in p_values.items():
            assert p > q or adjusted[name] <= adjusted[other]


@law
@given(samples, numbers)
def test_a_shift_moves_with_the_differences_and_lies_in_its_interval(differences: list[float], by: float) -> None:
    found, moved = estimate_shift(differences), estimate_shift([value + by for value in differences])
    assert moved.estimate == pytest.approx(found.estimate + by)
    assert (found.low is None) == (len(differences) < 6)
    if found.low is not None:
        assert found.low <= found.estimate <= found.high
        assert found.coverage >= 0.95
        assert moved.low == pytest.approx(found.low + by)


def test_too_few_seeds_give_an_effect_and_no_p_value() -> None:
    few = compare_with_reference({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert few.pairs == 2
    assert few.p is None
    assert few.shift is not None
    assert few.shift.estimate == 1.5
    enough = compare_with_reference({s: 1.0 + s for s in range(7)}, dict.fromkeys(range(7), 0.0))
    assert enough.p == pytest.approx(2.0**-7)
    assert enough.significant
    assert enough.side is Alternative.GREATER
    assert compare_with_reference({0: 1.0}, {1: 1.0}).pairs == 0


def test_pairs_that_are_equal_do_not_count_as_seeds() -> None:
    reference = dict.fromkeys(range(8), 5.0)
    same = compare_with_reference(reference, reference)
    assert (same.pairs, same.differing, same.side, same.p) == (8, 0, None, None)
    six = compare_with_reference({seed: 5.0 + max(0, seed - 1) for seed in range(8)}, reference)
    assert (six.pairs, six.differing, six.side, six.p) == (8, 6, None, None)
    seven = compare_with_reference({seed: 5.0 + seed for seed in range(8)}, reference)
    assert seven.p == pytest.approx(2.0**-7)
    assert seven.side is Alternative.GREATER


def test_means_that_were_summed_in_another_order_are_equal() -> None:
    reference = dict.fromkeys(range(8), 0.3)
    assert 0.1 + 0.2 != 0.3
    assert compare_with_reference(dict.fromkeys(range(8), 0.1 + 0.2), reference).differing == 0


def test_without_a_direction_no_side_is_named() -> None:
    # Magnitudes 1 to 8; 1 + 2 + 7 + 8 = 3 + 4 + 5 + 6, so both tails are the same.
    balanced = compare_with_reference(dict(enumerate([1.0, 2, -3, -4, -5, -6, 7, 8])), dict.fromkeys(range(8), 0.0))
    assert balanced.side is None
    assert balanced.p is not None
    assert balanced.p > 0.5


def _below(seeds: int) -> dict[int, float]:
    return {seed: -1.0 - seed for seed in range(seeds)}


def test_the_correction_is_left_out_where_it_could_not_be_passed() -> None:
    reference = dict.fromkeys(range(7), 0.0)
    rows = {"ref": reference, **{name: _below(7) for name in "abc"}}
    found = compare_all_with_reference(rows, "ref", family="abc")
    assert set(found) == set("abc")
    assert all(c.p == pytest.approx(2.0**-7) and c.p < LEVEL and c.p_holm is None for c in found.values())
    alone = compare_all_with_reference({"ref": reference, "a": rows["a"]}, "ref", family="a")
    assert alone["a"].p_holm == pytest.approx(2.0**-7)


def test_rows_outside_the_family_are_tested_and_do_not_count_in_the_correction() -> None:
    rows = {"ref": dict.fromkeys(range(10), 0.0), **{name: _below(10) for name in "abcdefghijkl"}}
    found = compare_all_with_reference(rows, "ref", family="abcdefghij")
    assert all(found[name].p_holm == pytest.approx(10 / 1024) for name in "abcdefghij")
    assert all(found[name].p == pytest.approx(1 / 1024) for name in "kl")
    assert all(found[name].p_holm is None and not found[name].in_family for name in "kl")


def test_a_row_with_few_seeds_may_pass_the_correction_behind_rows_with_many() -> None:
    rows = {"ref": dict.fromkeys(range(14), 0.0), "few": _below(7), **{name: _below(14) for name in "abcd"}}
    found = compare_all_with_reference(rows, "ref", family=("few", *"abcd"))
    assert found["few"].p_holm == pytest.approx(2.0**-7)
    assert found["a"].p_holm == pytest.approx(5 * 2.0**-14)
    twice = compare_all_with_reference({**rows, "too": _below(7)}, "ref", family=("few", "too", *"abcd"))
    assert twice["few"].p_holm is None
    assert twice["a"].p_holm == pytest.approx(6 * 2.0**-14)


positive = st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=1, max_size=9)


@law
@given(positive, st.sampled_from([0.5, 2.0, 8.0]))
def test_a_paired_ratio_scales_with_the_row_and_turns_over_with_the_sides(
    pairs: list[tuple[int, int]], factor: float
) -> None:
    row, reference = (dict(enumerate(float(pair[at]) for pair in pairs)) for at in range(2))
    found, turned = estimate_paired_ratio(row, reference), estimate_paired_ratio(reference, row)
    scaled = estimate_paired_ratio({seed: factor * value for seed, value in row.items()}, reference)
    assert scaled.estimate == pytest.approx(factor * found.estimate)
    assert turned.estimate == pytest.approx(1 / found.estimate)
    assert (found.low is None) == (len(pairs) < 6)
    if found.low is None:
        assert found.estimate == pytest.approx(math.prod(a / b for a, b in pairs) ** (1 / len(pairs)))
    else:
        assert found.low <= found.estimate <= found.high
        assert (turned.low, turned.high) == pytest.approx((1 / found.high, 1 / found.low))


def test_there_is_no_ratio_of_nothing() -> None:
    assert estimate_paired_ratio({0: 0.0, 1: 1.0}, {0: 1.0, 1: 1.0}) is None
    assert estimate_paired_ratio({0: 1.0}, {0: 0.0}) is None
    assert estimate_paired_ratio({0: 1.0}, {1: 1.0}) is None


@law
@given(st.lists(numbers, min_size=2, max_size=8))
def test_a_mean_over_seeds_has_an_error_that_copies_do_not_shrink_to_nothing(values: list[float]) -> None:
    found = Mean.from_values(values)
    assert min(values) - 1e-12 <= found.value <= max(values) + 1e-12
    assert (found.error == 0) == (len(set(values)) == 1)
    assert Mean.from_values(values[:1]).error is None


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
    cost = RunResult(0, summary, rounds).compute_cost_to_reach(per_cent / 100)
    assert cost.reached == (max(accuracies) >= per_cent / 100)
    if cost.reached:
        assert all(accuracy < per_cent / 100 for accuracy in accuracies[: cost.round - 1])
    else:
        assert cost.round == accuracies.index(max(accuracies)) + 1
    assert (cost.bits_up, cost.bits_down) == (100 * cost.round, 10 * cost.round + 7)
    assert cost.bits_both_ways == 110 * cost.round + 7


def test_what_the_summary_says_of_the_opening_is_taken_before_a_difference() -> None:
    rounds, summary = _run([0.5, 0.9], opening=7)
    told = {"seed down": 3, "statistics up": 40, "statistics down": 5}
    assert RunResult(0, summary, rounds).bits_before_round_1 == (0, 7)
    assert RunResult(0, replace(summary, bits_opening=told), rounds).bits_before_round_1 == (40, 8)
    cost = RunResult(0, replace(summary, bits_opening=told), rounds).compute_cost_to_reach(0.8)
    assert (cost.bits_up, cost.bits_down) == (240, 28)


@law
@given(st.integers(1, 100), st.integers(1, 3))
def test_an_accuracy_short_of_the_threshold_by_rounding_alone_reaches_it(per_cent: int, units: int) -> None:
    short = per_cent / 100
    for _ in range(units):
        short = math.nextafter(short, 0)
    rounds, summary = _run([short - 1e-9, short], opening=0)
    cost = RunResult(0, summary, rounds).compute_cost_to_reach(per_cent / 100)
    assert (cost.reached, cost.round) == (True, 2)
    assert choose_threshold([short]) == per_cent


@law
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_the_papers_threshold_is_reached_by_everyone_and_the_next_is_not(tenths: list[int]) -> None:
    accuracies = [tenth / 1000 for tenth in tenths]
    threshold = choose_threshold(accuracies)
    assert threshold == math.floor(min(tenths) / 10)
    assert choose_threshold([]) is None
