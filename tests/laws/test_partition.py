"""Every partition deals every record exactly once, in a way that depends on its key alone."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.data.partition import (
    Division,
    divide_at_random,
    divide_by_dirichlet,
    divide_by_people,
    divide_by_shards,
    divide_by_value,
    hold_out_people,
    hold_out_recordings,
    hold_out_records,
)
from fedlog.errors import InputError

LAW = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 2**32)


def labels_with(counts: list[int], seed: int) -> Tensor:
    """Shuffled labels with so many records of each class."""
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    return labels[torch.randperm(len(labels), generator=Key(seed).torch())]


@st.composite
def shard_problems(draw: st.DrawFn) -> dict[str, object]:
    n_class = draw(st.integers(1, 6))
    classes_per_client = draw(st.integers(1, n_class))
    shards_per_class = draw(st.integers(1, 5))
    # The number of clients must make the shards come out even.
    while n_class * shards_per_class % classes_per_client:
        shards_per_class += 1
    counts = st.lists(st.integers(shards_per_class, shards_per_class + 20), min_size=n_class, max_size=n_class)
    seed = draw(seeds)
    return {
        "train_labels": labels_with(draw(counts), seed),
        "test_labels": labels_with(draw(counts), seed + 1),
        "clients": n_class * shards_per_class // classes_per_client,
        "classes_per_client": classes_per_client,
        "n_class": n_class,
        "key": Key(seed),
    }


def assert_dealt_once(deal: Division, train: int, test: int) -> None:
    assert sorted(torch.cat(deal.train).tolist()) == list(range(train))
    assert sorted(torch.cat(deal.test).tolist()) == list(range(test))


def assert_same(left: Division, right: Division) -> None:
    for mine, other in zip((*left.train, *left.test), (*right.train, *right.test), strict=True):
        assert torch.equal(mine, other)


@LAW
@given(shard_problems())
def test_shards_deal_every_record_once_with_at_most_k_classes_and_the_same_classes_for_test(problem: dict) -> None:
    deal = divide_by_shards(**problem)
    train, test = problem["train_labels"], problem["test_labels"]
    assert_dealt_once(deal, len(train), len(test))
    assert len(deal.train) == len(deal.test) == problem["clients"]
    for of_train, of_test in zip(deal.train, deal.test, strict=True):
        classes = set(train[of_train].tolist())
        assert 1 <= len(classes) <= problem["classes_per_client"]
        assert set(test[of_test].tolist()) == classes
    assert_same(deal, divide_by_shards(**problem))


@LAW
@given(shard_problems())
def test_shards_of_a_class_are_runs_in_file_order_whose_sizes_differ_by_at_most_one(problem: dict) -> None:
    train = problem["train_labels"]
    deal = divide_by_shards(**problem)
    shards_per_class = problem["clients"] * problem["classes_per_client"] // problem["n_class"]
    for label in range(problem["n_class"]):
        rank = {position: i for i, position in enumerate((train == label).nonzero()[:, 0].tolist())}
        smallest, extra = divmod(len(rank), shards_per_class)
        for of_client in deal.train:
            ranks = sorted(rank[position] for position in of_client.tolist() if position in rank)
            # A client with several shards of a class holds several runs; each run starts where a shard starts.
            starts = {min(shard, extra) + shard * smallest for shard in range(shards_per_class)}
            for i, value in enumerate(ranks):
                assert value in starts or (i > 0 and ranks[i - 1] == value - 1)


@given(seeds)
@LAW
def test_another_key_deals_another_hand_of_classes(seed: int) -> None:
    labels = labels_with([40] * 10, 0)
    hands = [
        divide_by_shards(labels, labels, clients=20, classes_per_client=2, n_class=10, key=Key(seed + other))
        for other in (0, 1)
    ]
    classes = [[set(labels[of_client].tolist()) for of_client in hand.train] for hand in hands]
    assert classes[0] != classes[1]


def test_every_class_is_dealt_equally_often() -> None:
    labels = labels_with([30] * 10, 3)
    deal = divide_by_shards(labels, labels, clients=50, classes_per_client=2, n_class=10, key=Key(5))
    records = Counter(label for of_client in deal.train for label in labels[of_client].tolist())
    assert records == Counter(dict.fromkeys(range(10), 30))
    holders = Counter(label for of_client in deal.train for label in set(labels[of_client].tolist()))
    assert all(1 <= count <= 10 for count in holders.values())


@LAW
@given(
    counts=st.lists(st.integers(20, 60), min_size=2, max_size=5),
    clients=st.integers(1, 6),
    alpha=st.floats(0.3, 100),
    seed=seeds,
)
def test_dirichlet_deals_every_record_once_and_leaves_no_client_empty(
    counts: list[int], clients: int, alpha: float, seed: int
) -> None:
    train, test = labels_with(counts, seed), labels_with(counts, seed + 1)
    problem = {"clients": clients, "alpha": alpha, "n_class": len(counts), "key": Key(seed)}
    deal = divide_by_dirichlet(train, test, **problem)
    assert_dealt_once(deal, len(train), len(test))
    for of_train, of_test in zip(deal.train, deal.test, strict=True):
        assert len(of_train)
        assert len(of_test)
        # Equally many records of each class in both pools: equal shares are then equal counts.
        assert Counter(train[of_train].tolist()) == Counter(test[of_test].tolist())
    assert_same(deal, divide_by_dirichlet(train, test, **problem))


def test_a_large_alpha_comes_close_to_even_shares() -> None:
    labels = labels_with([1000] * 4, 0)
    deal = divide_by_dirichlet(labels, labels, clients=5, alpha=1e6, n_class=4, key=Key(1))
    shares = torch.stack([torch.bincount(labels[of_client], minlength=4) for of_client in deal.train])
    assert int((shares - 200).abs().max()) <= 5


@LAW
@given(n=st.integers(1, 80), extra=st.integers(0, 40), clients=st.integers(1, 10), seed=seeds)
def test_iid_deals_every_record_once_in_even_parts(n: int, extra: int, clients: int, seed: int) -> None:
    train, test = torch.zeros(clients + n, dtype=torch.int64), torch.zeros(clients + extra, dtype=torch.int64)
    deal = divide_at_random(train, test, clients=clients, key=Key(seed))
    assert_dealt_once(deal, len(train), len(test))
    for pool in (deal.train, deal.test):
        sizes = [len(part) for part in pool]
        assert max(sizes) - min(sizes) <= 1
    assert_same(deal, divide_at_random(train, test, clients=clients, key=Key(seed)))


@LAW
@given(people=st.integers(2, 30), records=st.integers(1, 4), data=st.data(), seed=seeds)
def test_clients_hold_whole_people_who_are_either_trained_on_or_tested_on(
    people: int, records: int, data: st.DataObject, seed: int
) -> None:
    clients = data.draw(st.integers(1, people // 2))
    users = torch.arange(people).repeat(records)
    deal = divide_by_people(users, clients=clients, key=Key(seed))
    assert sorted(torch.cat([*deal.train, *deal.test]).tolist()) == list(range(len(users)))
    people_of = [set(users[positions].tolist()) for positions in (*deal.train, *deal.test)]
    assert all(people_of)
    assert sum(len(own) for own in people_of) == people  # so nobody is in two of these sets
    assert_same(deal, divide_by_people(users, clients=clients, key=Key(seed)))


@LAW
@given(st.lists(st.floats(-5, 5, width=32), min_size=4, max_size=40, unique=True), st.integers(1, 4), seeds)
def test_bands_are_even_ordered_and_take_the_test_records_between_their_borders(
    values: list[float], clients: int, seed: int
) -> None:
    train = torch.tensor(values, dtype=torch.float64)
    test = torch.rand(50, generator=Key(seed).torch(), dtype=torch.float64) * 10 - 5
    deal = divide_by_value(train, test, clients=clients)
    assert_dealt_once(deal, len(train), len(test))
    sizes = [len(band) for band in deal.train]
    assert max(sizes) - min(sizes) <= 1
    for low, high in zip(range(clients - 1), range(1, clients), strict=True):
        assert train[deal.train[low]].max() < train[deal.train[high]].min()
        border = (train[deal.train[low]].max() + train[deal.train[high]].min()) / 2
        assert all(value <= border for value in test[deal.test[low]])
        assert all(value > border for value in test[deal.test[high]])


@LAW
@given(counts=st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(any), fraction=st.floats(0, 0.99), seed=seeds)
def test_hold_out_splits_in_proportion_and_keeps_every_class_in_training(
    counts: list[int], fraction: float, seed: int
) -> None:
    pool = labels_with([*counts, 7], seed)  # the last class belongs to somebody else
    mine = (pool < len(counts)).nonzero()[:, 0]
    kept, held = hold_out_records(mine, pool, fraction, Key(seed))
    assert sorted([*kept.tolist(), *held.tolist()]) == mine.tolist()
    assert set(pool[kept].tolist()) == set(pool[mine].tolist())
    assert len(held) <= round(fraction * len(mine))
    for label, count in enumerate(counts):
        of_class = int((pool[held] == label).sum())
        assert min(int(fraction * count), count - 1) <= of_class <= fraction * count + 1
    again = hold_out_records(mine, pool, fraction, Key(seed))
    assert torch.equal(kept, again[0])
    assert torch.equal(held, again[1])


def test_hold_out_takes_the_fraction_exactly_where_classes_allow() -> None:
    labels = labels_with([50, 30, 20], 0)
    kept, held = hold_out_records(torch.arange(100), labels, 0.1, Key(2))
    assert torch.bincount(labels[held]).tolist() == [5, 3, 2]
    assert len(kept) == 90
    _, held = hold_out_records(torch.arange(32), labels_with([16, 16], 0), 0.1, Key(2))
    assert len(held) == 3


@LAW
@given(users=st.lists(st.integers(0, 5), min_size=1, max_size=40), fraction=st.floats(0, 0.99), seed=seeds)
def test_held_out_people_are_whole_and_never_everybody(users: list[int], fraction: float, seed: int) -> None:
    column = torch.tensor(users)
    kept, held = hold_out_people(torch.arange(len(users)), column, fraction, Key(seed))
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(users)))
    assert not set(column[kept].tolist()) & set(column[held].tolist())
    assert len(kept)
    assert (len(held) > 0) == (fraction > 0 and len(set(users)) > 1)


@LAW
@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=60),
    fraction=st.floats(0, 0.99),
    seed=seeds,
)
def test_held_out_recordings_are_whole_and_leave_one_of_every_class(
    rows: list[tuple[int, int]], fraction: float, seed: int
) -> None:
    labels = torch.tensor([label for label, _ in rows])
    recordings = torch.tensor([10 * label + recording for label, recording in rows])
    kept, held = hold_out_recordings(torch.arange(len(rows)), labels, recordings, fraction, Key(seed))
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(rows)))
    assert not set(recordings[kept].tolist()) & set(recordings[held].tolist())
    assert set(labels[kept].tolist()) == set(labels.tolist())
    for label in set(labels.tolist()):
        of_class = labels == label
        largest = int(torch.bincount(recordings[of_class]).max())
        assert int((labels[held] == label).sum()) <= fraction * int(of_class.sum()) + largest
        several = len(set(recordings[of_class].tolist())) > 1
        assert bool((labels[held] == label).any()) == (several and fraction > 0)


TEN = labels_with([20] * 10, 0)


@pytest.mark.parametrize(
    ("deal", "says"),
    [
        (lambda: divide_by_dirichlet(TEN, TEN, clients=5, alpha=0.0, n_class=10, key=Key(0)), "must be positive"),
        (lambda: divide_by_dirichlet(TEN, TEN, clients=20, alpha=0.001, n_class=10, key=Key(0)), "some client got no"),
        (lambda: divide_at_random(TEN, TEN[:3], clients=5, key=Key(0)), "too few test records for 5 clients: 3"),
        (lambda: divide_by_people(TEN, clients=6, key=Key(0)), "one each to train on and one to test on, found: 10"),
        (lambda: hold_out_records(torch.arange(5), TEN, 1.0, Key(0)), "must be at least 0 and below 1"),
    ],
)
def test_impossible_partitions_are_refused_with_the_reason(deal: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        deal()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("clients", "classes", "says"),
    [
        (7, 2, "cannot be cut evenly"),
        (4, 2, "cannot be cut evenly"),
        (10, 11, "must be 1 to 10"),
        (10, 0, "must be 1 to 10"),
        (0, 2, "clients must be at least 1"),
        (200, 2, "class 0 needs 40 training records, one for each shard, found: 20"),
    ],
)
def test_impossible_shards_are_refused_with_the_reason(clients: int, classes: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        divide_by_shards(TEN, TEN, clients=clients, classes_per_client=classes, n_class=10, key=Key(0))
