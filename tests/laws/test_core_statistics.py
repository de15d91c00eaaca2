"""Laws of the sufficient statistics: they add, forget the order of the records, carry the counts, refuse nonsense."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.core.keys import Key
from fedlog.core.stats import Statistics, add_constant, measure_spread_of_means
from fedlog.errors import InputError

Records = tuple[torch.Tensor, torch.Tensor, int]


@st.composite
def records(draw: st.DrawFn) -> Records:
    """Features (n, m - 1), labels (n,) and the number of classes; n = 0, no feature and empty classes occur.

    Features are multiples of 1/64 below 2^14, so every order of summation gives the same float64 sum exactly.
    """
    n, width, n_class = draw(st.integers(0, 40)), draw(st.integers(0, 6)), draw(st.integers(1, 7))
    generator = Key(draw(st.integers(0, 2**32))).torch()
    features = torch.randint(-(2**20), 2**20, (n, width), generator=generator) / 64
    used = draw(st.integers(1, n_class))
    return features, torch.randint(0, used, (n,), generator=generator), n_class


@settings(deadline=None, max_examples=80)
@given(records(), st.integers(0, 2**32), st.integers(1, 5))
def test_statistics_of_parts_sum_to_statistics_of_whole(drawn: Records, seed: int, n_part: int) -> None:
    features, labels, n_class = drawn
    part = torch.randint(0, n_part, labels.shape, generator=Key(seed).torch())
    total = Statistics.zeros(n_class, features.shape[1] + 1)
    for index in range(n_part):
        total = total + Statistics.from_records(features[part == index], labels[part == index], n_class)
    assert torch.equal(total.sums, Statistics.from_records(features, labels, n_class).sums)


@settings(deadline=None, max_examples=80)
@given(records(), st.integers(0, 2**32))
def test_the_order_of_records_changes_nothing(drawn: Records, seed: int) -> None:
    features, labels, n_class = drawn
    order = torch.randperm(len(labels), generator=Key(seed).torch())
    shuffled = Statistics.from_records(features[order], labels[order], n_class)
    assert torch.equal(shuffled.sums, Statistics.from_records(features, labels, n_class).sums)


@settings(deadline=None, max_examples=60)
@given(records())
def test_statistics_are_the_sum_of_the_records_own(drawn: Records) -> None:
    features, labels, n_class = drawn
    phi = add_constant(features.double())
    expected = torch.zeros((n_class, phi.shape[1]), dtype=torch.float64)
    for row, label in zip(phi, labels.tolist(), strict=True):
        expected[label] += row
    assert torch.equal(Statistics.from_records(features, labels, n_class).sums, expected)


@settings(deadline=None, max_examples=60)
@given(records())
def test_column_0_carries_the_counts_and_means_are_means(drawn: Records) -> None:
    features, labels, n_class = drawn
    statistics = Statistics.from_records(features, labels, n_class)
    assert torch.equal(statistics.counts, torch.bincount(labels, minlength=n_class).double())
    assert statistics.total == len(labels)
    assert (statistics.n_class, statistics.n_columns) == (n_class, features.shape[1] + 1)
    means, present = statistics.means()
    for label in range(n_class):
        own = add_constant(features.double())[labels == label]
        assert bool(present[label]) == (len(own) > 0)
        expected = own.mean(dim=0) if len(own) else torch.zeros(statistics.n_columns, dtype=torch.float64)
        torch.testing.assert_close(means[label], expected, rtol=1e-13, atol=0)


def test_float32_features_are_summed_in_float64() -> None:
    features = torch.tensor([[2.0**24], [1.0], [1.0]])  # float32 would drop the ones
    assert Statistics.from_records(features, torch.zeros(3), 1).sums.tolist() == [[3.0, 2.0**24 + 2]]


def test_statistics_do_not_carry_a_graph() -> None:
    features = torch.ones((2, 3), requires_grad=True)
    assert not Statistics.from_records(features, torch.tensor([0, 1]), 2).sums.requires_grad


def test_spread_of_means_counts_only_classes_with_records() -> None:
    # Means (1, 3) and (1, -3) around the centre (1, 0); the third class has no record.
    statistics = Statistics(torch.tensor([[2.0, 6.0], [1.0, -3.0], [0.0, 0.0]]))
    assert measure_spread_of_means(statistics) == pytest.approx(3.0, rel=1e-15)
    assert measure_spread_of_means(Statistics.zeros(3, 2)) == 0.0
    assert measure_spread_of_means(statistics, count_above=1.5) == 0.0


@settings(deadline=None, max_examples=30)
@given(st.floats(0.01, 100), st.floats(-50, 50), st.integers(0, 2**32))
def test_spread_scales_with_the_features_and_ignores_a_shift(scale: float, shift: float, seed: int) -> None:
    generator = Key(seed).torch()
    features, labels = torch.randn((30, 4), generator=generator, dtype=torch.float64), torch.arange(30) % 5
    one = measure_spread_of_means(Statistics.from_records(features, labels, 5))
    other = measure_spread_of_means(Statistics.from_records(features * scale + shift, labels, 5))
    assert other == pytest.approx(one * scale, rel=1e-9, abs=1e-11)


def test_labels_and_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="record 1 must be 0 to 2, found: 3"):
        Statistics.from_records(torch.zeros((2, 1)), torch.tensor([0, 3]), 3)
    with pytest.raises(InputError, match=r"record 0 .* found: -1"):
        Statistics.from_records(torch.zeros((2, 1)), torch.tensor([-1, 0]), 3)
    with pytest.raises(InputError, match=r"features \(2, 1\), labels \(3,\)"):
        Statistics.from_records(torch.zeros((2, 1)), torch.zeros(3), 3)
    with pytest.raises(InputError, match=r"\(2, 3\) and \(2, 4\)"):
        _ = Statistics.zeros(2, 3) + Statistics.zeros(2, 4)
