"""Every row is in exactly one part, groups stay whole, and time never runs backwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.core.keys import Key
from fedlog.data.split import HeldOutShares, Split, split_by_class, split_by_content, split_by_group, split_by_time
from fedlog.errors import InputError

SHARES = HeldOutShares(0.2, 0.2)


def check_partition(split: Split, n: int) -> None:
    parts = [split.train, split.validation, split.test]
    assert all(len(part) > 0 for part in parts)
    check_partition_of_rows(split, n)


def check_partition_of_rows(split: Split, n: int) -> None:
    assert sorted(np.concatenate([split.train, split.validation, split.test]).tolist()) == list(range(n))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 12), min_size=3, max_size=80).filter(lambda g: len(set(g)) >= 3), st.integers(0, 9))
def test_groups_stay_whole(groups: list[int], seed: int) -> None:
    array = np.array(groups, dtype=np.int64)
    split = split_by_group(array, SHARES, Key(seed))
    check_partition(split, len(groups))
    seen = [group for part in (split.train, split.validation, split.test) for group in set(array[part].tolist())]
    assert len(seen) == len(set(seen))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 30), min_size=3, max_size=80).filter(lambda t: len(set(t)) >= 3))
def test_later_parts_are_strictly_later(times: list[int]) -> None:
    array = np.array(times, dtype=np.float64)
    split = split_by_time(array, SHARES)
    check_partition(split, len(times))
    assert array[split.train].max() < array[split.validation].min()
    assert array[split.validation].max() < array[split.test].min()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(5, 30), min_size=1, max_size=4), st.integers(0, 9))
def test_every_class_is_divided_alike(counts: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    split = split_by_class(labels, SHARES, Key(seed))
    check_partition(split, len(labels))
    for label, count in enumerate(counts):
        for part in (split.validation, split.test):
            assert abs((labels[part] == label).sum() - 0.2 * count) <= 0.5
    again = split_by_class(labels, SHARES, Key(seed))
    assert np.array_equal(split.test, again.test)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(2, 30), min_size=1, max_size=4).filter(lambda c: max(c) > 4), st.integers(0, 9))
def test_rows_take_turns_and_test_rows_stay(counts: list[int], seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    for first in (0, SHARES.folds):  # two shuffles
        splits = [
            split_by_class(labels, replace(SHARES, split_seed=first + at), Key(seed)) for at in range(SHARES.folds)
        ]
        for split in splits:
            check_partition_of_rows(split, len(labels))
            assert np.array_equal(split.test, splits[0].test)
        judged = np.concatenate([split.validation for split in splits])
        assert sorted(judged.tolist()) == sorted({*range(len(labels))} - {*splits[0].test.tolist()})
    assert np.array_equal(splits[0].test, split_by_class(labels, SHARES, Key(seed)).test)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 12), min_size=3, max_size=80).filter(lambda g: len(set(g)) >= 3), st.integers(0, 9))
def test_groups_take_turns_whole(groups: list[int], seed: int) -> None:
    array, seen = np.array(groups, dtype=np.int64), set()
    for split_seed in range(len(set(groups))):
        split = split_by_group(array, replace(SHARES, split_seed=split_seed), Key(seed))
        check_partition(split, len(groups))
        parts = [set(array[part].tolist()) for part in (split.train, split.validation, split.test)]
        assert len(set().union(*parts)) == sum(map(len, parts))
        seen |= parts[1]
        assert parts[2] == set(array[split_by_group(array, SHARES, Key(seed)).test].tolist())
    assert seen | parts[2] == set(groups)


def test_by_content_rows_take_turns() -> None:
    rows = [bytes([at % 256, at // 256]) for at in range(2000)]
    for first in (0, SHARES.folds):
        splits = [split_by_content(rows, replace(SHARES, split_seed=first + at), Key(1)) for at in range(SHARES.folds)]
        judged = np.concatenate([split.validation for split in splits])
        assert len(set(judged.tolist())) == len(judged) == len(rows) - len(splits[0].test)
        assert all(320 < len(split.validation) < 480 for split in splits)
        assert all(np.array_equal(split.test, splits[0].test) for split in splits)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(max_size=3), max_size=60), st.binary(max_size=3), st.integers(0, 60), st.integers(0, 9))
def test_by_content_one_row_more_moves_no_other_row(rows: list[bytes], extra: bytes, at: int, seed: int) -> None:
    at = min(at, len(rows))
    longer = [*rows[:at], extra, *rows[at:]]
    before, after = (split_by_content(table, SHARES, Key(seed)) for table in (rows, longer))
    parts = [(before.train, after.train), (before.validation, after.validation), (before.test, after.test)]
    assert sorted(np.concatenate([new for _, new in parts]).tolist()) == list(range(len(longer)))
    for old, new in parts:
        assert [longer[row] for row in new if row != at] == [rows[row] for row in old]


def test_by_content_the_parts_come_near_their_shares_and_depend_on_the_key() -> None:
    rows = [number.to_bytes(2, "big") for number in range(5000)]
    split = split_by_content(rows, HeldOutShares(0.1, 0.3), Key(5))
    # Seven standard deviations of a binomial count.
    assert abs(len(split.validation) - 500) < 150
    assert abs(len(split.test) - 1500) < 230
    assert not np.array_equal(split.test, split_by_content(rows, HeldOutShares(0.1, 0.3), Key(6)).test)


def test_groups_come_near_the_shares() -> None:
    groups = np.repeat(np.arange(50), 4)
    split = split_by_group(groups, SHARES, Key(3))
    assert (len(split.validation), len(split.test)) == (40, 40)


def test_too_little_is_refused() -> None:
    with pytest.raises(InputError, match="at least 3 groups"):
        split_by_group(np.array([0, 0, 1]), SHARES, Key(0))
    with pytest.raises(InputError, match="3 different times"):
        split_by_time(np.array([1.0, 1.0, 2.0]), SHARES)
    with pytest.raises(InputError, match="none is left for: validation, test"):
        split_by_class(np.array([0, 1, 2]), SHARES, Key(0))
    with pytest.raises(InputError, match="sum below 1"):
        HeldOutShares(0.6, 0.5)
