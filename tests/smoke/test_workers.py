"""Worker processes: how clients are divided among them, and what happens if one fails, dies or hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlog.engine.clients import Client
from fedlog.engine.simulate.workers import InProcess, WorkerProcesses, split_by_work
from fedlog.errors import InputError, RunError
from fedlog.models.catalog import make_body

# From Python 3.12 on, forking a process that has threads is worth a warning; our workers use none of them.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

BODY = make_body("mlp:2", (2,))


def _client(index: int, records: int) -> Client:
    return Client(index, f"client-{index}", BODY, torch.arange(records), (torch.arange(0),), (torch.arange(0),))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(1, 6))
def test_clients_are_dealt_once_each_and_evenly(sizes: list[int], hands: int) -> None:
    clients = [_client(index, size) for index, size in enumerate(sizes)]
    shares = split_by_work(clients, hands)
    assert len(shares) == min(hands, len(clients))
    assert sorted(client.index for share in shares for client in share) == list(range(len(sizes)))
    assert all(shares)
    loads = [sum(client.records + 1 for client in share) for share in shares]
    # Largest first: no hand is ahead of another by more than the largest client.
    assert max(loads) - min(loads) <= max(sizes) + 1


class _Cohort:
    """Stands in for a cohort: answers with its process, fails, dies or hangs as it is told."""

    def __init__(self, clients: list[Client]) -> None:
        self._indices = [client.index for client in clients]

    def receive_broadcast(self, blob: bytes) -> int:
        return os.getpid()

    def evaluate(self, indices: list[int], judge: Any, closing: Any = ()) -> list[tuple[int, str]]:
        if judge == "refuse" and 1 in indices:
            raise InputError("client-1 has something wrong", hint="look at it")
        if judge == "fail" and 1 in indices:
            raise ZeroDivisionError("on purpose")
        if judge == "die" and 1 in indices:
            os.kill(os.getpid(), signal.SIGKILL)
        if judge == "hang" and 1 in indices:
            time.sleep(600)
        return [(index, "scored") for index in indices]


@pytest.fixture
def make_workers() -> Iterator[Callable[..., WorkerProcesses]]:
    made: list[WorkerProcesses] = []

    def make(processes: int = 2, clients: int = 4) -> WorkerProcesses:
        made.append(WorkerProcesses(_Cohort, [_client(index, 5) for index in range(clients)], processes, 1))  # type: ignore[arg-type]
        made[-1].start()
        return made[-1]

    yield make
    for workers in made:
        workers.stop()
        assert not any(process.is_alive() for process in workers._processes)


def test_answers_come_back_in_the_clients_order_from_different_processes(
    make_workers: Callable[..., WorkerProcesses],
) -> None:
    workers = make_workers()
    found = workers.evaluate([3, 1, 0, 2], None)  # type: ignore[arg-type]
    assert [index for index, _ in found] == [0, 1, 2, 3]
    pids = workers._call_all("receive_broadcast", [(b"",)] * 2)
    assert len({*pids, os.getpid()}) == 3


def test_a_refusal_in_a_worker_reaches_the_user_with_its_hint(make_workers: Callable[..., WorkerProcesses]) -> None:
    workers = make_workers()
    with pytest.raises(InputError, match="client-1 has something wrong") as caught:
        workers.evaluate([0, 1, 2, 3], "refuse")  # type: ignore[arg-type]
    assert caught.value.hint == "look at it"
    # The other answers were taken in too: the next call gets its own.
    assert workers.evaluate([1], None) == [(1, "scored")]  # type: ignore[arg-type]


def test_a_bug_in_a_worker_is_named_and_its_traceback_shown(
    make_workers: Callable[..., WorkerProcesses], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError, match="a worker failed in evaluate: ZeroDivisionError: on purpose"):
        make_workers().evaluate([0, 1], "fail")  # type: ignore[arg-type]
    assert "Traceback" in capfd.readouterr().err


def test_a_worker_that_dies_is_noticed(make_workers: Callable[..., WorkerProcesses]) -> None:
    workers = make_workers()
    with pytest.raises(RunError, match=r"worker \d of 2 ended unexpectedly: exit code -9") as caught:
        workers.evaluate([0, 1, 2, 3], "die")  # type: ignore[arg-type]
    assert "resume" in str(caught.value.hint)
    with pytest.raises(RunError, match="ended unexpectedly"):
        workers.evaluate([0, 1, 2, 3], None)  # type: ignore[arg-type]


def test_a_worker_that_hangs_is_ended(make_workers: Callable[..., WorkerProcesses]) -> None:
    workers = make_workers()
    workers._pipes[0].send(("evaluate", ([0, 1, 2, 3], "hang")))
    time.sleep(0.2)
    start = time.monotonic()
    workers.stop()
    assert time.monotonic() - start < 30
    assert not any(process.is_alive() for process in workers._processes)


def test_workers_do_not_outlive_whoever_made_them() -> None:
    """A parent that is killed cannot tell its workers: they see the closed pipe and end."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            workers = WorkerProcesses(_Cohort, [_client(index, 5) for index in range(4)], 2, 1)  # type: ignore[arg-type]
            workers.start()
            os.write(writing, " ".join(str(process.pid) for process in workers._processes).encode())
            time.sleep(600)
        finally:
            os._exit(0)
    os.close(writing)
    pids = [int(pid) for pid in os.read(reading, 100).split()]
    assert len(pids) == 2
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    until = time.monotonic() + 60
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < until, "a worker outlived its parent"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_workers_answer_only_between_start_and_stop() -> None:
    clients = [_client(index, 5) for index in range(2)]
    for workers in (WorkerProcesses(_Cohort, clients, 2, 1), InProcess(_Cohort, clients)):  # type: ignore[arg-type]
        with pytest.raises(RunError, match="not running"):
            workers.receive_broadcast(b"")
        workers.start()
        workers.receive_broadcast(b"")
        workers.stop()
    processes = WorkerProcesses(_Cohort, clients, 2, 1)  # type: ignore[arg-type]
    assert not processes._processes
    processes.start()
    processes.stop()
    with pytest.raises(RunError, match="not running"):
        processes.receive_broadcast(b"")
