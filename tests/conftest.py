"""Fixtures for many tests: one thread per process, one kind of terminal, and small federations."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from fedlog.core.keys import Key
from fedlog.data.federation import Federation, Records, Shard
from fedlog.data.transforms import Transform

MakeFederation = Callable[..., Federation]
TESTS = Path(__file__).parent
LONG_FIRST = ("packaging", "smoke", "docs", "oracles")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests without the garbage collector, which took a quarter of the time: what is imported stays.

    Later collections leave it alone too: each would look at millions of objects that last until the end.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the folders whose single tests are long: one that starts last would keep only one core busy."""
    at = {folder: place for place, folder in enumerate(LONG_FIRST)}
    items.sort(key=lambda item: at.get(item.path.relative_to(TESTS).parts[0], len(at)))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Use one thread: small kernels gain nothing from more, and the test processes share the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _a_memory_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the cache of fedlog in a temporary folder, not in the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLOG_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Let `os.fsync` refuse a closed descriptor but not wait: the tests force tens of thousands of files to the disk.

    What is forced and when is tested with replacements of `os.fsync`; processes that a test starts use the real one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _check_descriptor)
        yield


@pytest.fixture(autouse=True)
def _a_terminal_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set TERM, so that output does not depend on the terminal that the tests are started from."""
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture(scope="session")
def make_federation() -> MakeFederation:
    """A function that makes a federation: client i has `sizes[i]` training and `tests[i]` test records."""

    def make(
        sizes: Sequence[int],
        tests: Sequence[int] | None = None,
        n_class: int = 3,
        input_shape: tuple[int, ...] = (4,),
        seed: int = 0,
        transform: Transform = Transform(),  # noqa: B008 (frozen)
        name: str = "made up",
    ) -> Federation:
        tests = [4] * len(sizes) if tests is None else tests
        pools = {part: _records(sum(counts), n_class, input_shape, Key(seed).child(part), Key(seed).child("centres"))
                 for part, counts in (("train", sizes), ("test", tests))}  # fmt: skip
        starts = {"train": _starts(sizes), "test": _starts(tests)}
        shards = tuple(
            Shard(
                f"client-{at}",
                torch.arange(starts["train"][at], starts["train"][at + 1]),
                torch.arange(starts["test"][at], starts["test"][at + 1]),
                torch.empty(0, dtype=torch.int64),
            )
            for at in range(len(sizes))
        )
        names = tuple(str(label) for label in range(n_class))
        return Federation(name, n_class, input_shape, pools["train"], pools["test"], shards, transform, names)

    return make


def _records(count: int, n_class: int, shape: tuple[int, ...], key: Key, centres_key: Key) -> Records:
    centres = torch.randn(n_class, *shape, generator=centres_key.torch())
    labels = torch.randint(0, n_class, (count,), generator=key.child("labels").torch())
    noise = torch.randn(count, *shape, generator=key.child("noise").torch())
    return Records(centres[labels] + 0.3 * noise, labels)


def _starts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:at]) for at in range(len(counts) + 1)]


def _check_descriptor(descriptor: int) -> None:
    os.fstat(descriptor)
