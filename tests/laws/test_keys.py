"""Laws of keys: each path has its own stream, whatever other paths are used."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.core.keys import Key

# Separators, quotes, digits and escapes: what a careless joining of names would confuse.
NAMES = st.one_of(st.text("ab/'\"\\\x1f,01 ", max_size=4), st.integers(-3, 12))
PATHS = st.lists(NAMES, max_size=4).map(tuple)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 3), PATHS, st.integers(0, 3), PATHS)
def test_different_paths_have_different_streams(
    seed: int, path: tuple[str | int, ...], other_seed: int, other: tuple[str | int, ...]
) -> None:
    same = (seed, path) == (other_seed, other)
    assert (Key(seed, path).integer() == Key(other_seed, other).integer()) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        ((1,), ("1",)),
        ((1, 2), (12,)),
        (("a\x1fb",), ("a", "b")),
        (("a'\x1f'b",), ("a", "b")),
        (("",), ()),
        (("a", ""), ("a",)),
        (("client", 1, "round", 11), ("client", 11, "round", 1)),
    ],
)
def test_paths_that_read_alike_are_kept_apart(one: tuple[str | int, ...], other: tuple[str | int, ...]) -> None:
    assert Key(0, one).integer() != Key(0, other).integer()


def test_a_whole_run_of_paths_has_no_collision() -> None:
    """Every path that 100 clients, 40 rounds, 5 epochs and the shared purposes of a run use: 20,000 streams."""
    run = Key(0)
    keys = [
        run.child("client", f"client-{client}", "round", number, "statistics", "phase", 0, "epoch", epoch)
        for client in range(100)
        for number in range(40)
        for epoch in range(5)
    ]
    keys += [run.child("round", number, "participants") for number in range(40)]
    keys += [run.child("initial", "body"), run.child("initial", "head"), run.child("server"), run.child("bodies")]
    assert len({key.integer() for key in keys}) == len(keys)


@settings(deadline=None, max_examples=60)
@given(PATHS, PATHS)
def test_a_child_of_a_child_is_the_whole_path(first: tuple[str | int, ...], second: tuple[str | int, ...]) -> None:
    assert Key(1).child(*first).child(*second) == Key(1).child(*first, *second)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6, unique=True), st.integers(0, 2**32))
def test_the_order_of_clients_changes_no_draw(names: list[str], seed: int) -> None:
    def draws(order: list[str]) -> dict[str, list[float]]:
        return {name: torch.rand(3, generator=Key(seed).child("client", name).torch()).tolist() for name in order}

    assert draws(names) == draws(names[::-1])
    alone = draws(names[:1])
    assert alone[names[0]] == draws(names)[names[0]]


@settings(deadline=None, max_examples=40)
@given(st.integers(-(2**70), 2**70), PATHS)
def test_any_seed_and_path_start_the_same_stream_each_time(seed: int, path: tuple[str | int, ...]) -> None:
    key = Key(seed, path)
    assert 0 <= key.integer() < 2**63
    assert torch.equal(torch.rand(4, generator=key.torch()), torch.rand(4, generator=key.torch()))
    assert key.numpy().random(4).tolist() == key.numpy().random(4).tolist()


def test_no_global_state_is_read_or_moved() -> None:
    before = torch.random.get_rng_state()
    first = torch.rand(2, generator=Key(3).child("x").torch())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert torch.equal(first, torch.rand(2, generator=Key(3).child("x").torch()))
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_streams_of_neighbouring_keys_are_not_related() -> None:
    """Correlation of 2000 normal draws between 20 neighbours: none above 5 standard errors."""
    rows = torch.stack([torch.randn(2000, generator=Key(0).child("round", at).torch()) for at in range(20)])
    correlation = torch.corrcoef(rows) - torch.eye(20)
    assert float(correlation.abs().max()) < 5 / 2000**0.5
