"""Worker processes, each with a cohort of clients. What travels between them and the server is what a network carries.

Small kernels do not split over threads, so one process with one thread per core is the fast way to use them all.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from fedlog.algorithms.shape import Exchange, Phase
from fedlog.engine.clients import Client
from fedlog.engine.protocol.cohort import Cohort, Score
from fedlog.engine.training.tasks import CLOCK
from fedlog.errors import FedlogError, RunError
from fedlog.settings.training import Judge

Uploads = list[tuple[int, bytes | None]]
Scores = list[tuple[int, tuple[Score, ...]]]
MakeCohort = Callable[[list[Client]], Cohort]


class Workers(ABC):
    """All clients of a run, dealt out to cohorts. A subclass says where the cohorts are computed."""

    def __init__(self, make: MakeCohort, shares: list[list[Client]]) -> None:
        self._make = make
        self._shares = shares
        self._share_of = {client.index: number for number, share in enumerate(shares) for client in share}

    @abstractmethod
    def start(self) -> None:
        """Make the clients, in processes of their own if need be."""

    @abstractmethod
    def stop(self) -> None:
        """End the workers, if there are any."""

    @abstractmethod
    def take_times(self) -> list[dict[str, float]]:
        """The seconds of every process but this one, by part, since the last call."""

    @abstractmethod
    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call this method of every cohort, each with its own arguments; RunError if they are not running."""

    def hear(self, blob: bytes) -> None:
        """Hand a broadcast to everyone."""
        self._all("hear", [(blob,)] * len(self._shares))

    def hear_own(self, blobs: Mapping[int, bytes], anew: Collection[int] = ()) -> None:
        """Hand each of these clients its own bytes of a broadcast; those in `anew` forget earlier messages first."""
        split = self._split(list(blobs))
        parts = [({index: blobs[index] for index in own}, [index for index in own if index in anew]) for own in split]
        self._all("hear_own", parts)

    def exchange(self, round_number: int, exchange: Exchange, indices: Sequence[int]) -> Uploads:
        """The uploads of these clients, in their order."""
        return self._call_and_join("exchange", [(round_number, exchange, own) for own in self._split(indices)])

    def evaluate(self, indices: Sequence[int], judge: Judge, closing: tuple[Phase, ...] = ()) -> Scores:
        """The scores of these clients, in their order, after that closing phase if there is one."""
        return self._call_and_join("evaluate", [(own, judge, closing) for own in self._split(indices)])

    def save_models(self, closing: tuple[Phase, ...], folder: Path) -> None:
        """Write every client's personalised model."""
        self._all("save_models", [(closing, [client.index for client in own], folder) for own in self._shares])

    def save(self, folder: Path) -> None:
        """Write what all clients keep at home."""
        self._all("save", [(folder / f"clients-{number}.safetensors",) for number in range(len(self._shares))])

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote, by any number of workers."""
        files = sorted(folder.glob("clients-*.safetensors"))
        self._all("load", [(files,)] * len(self._shares))

    def _split(self, indices: Sequence[int]) -> list[list[int]]:
        """These clients by the cohort that has them."""
        split: list[list[int]] = [[] for _ in self._shares]
        for index in indices:
            split[self._share_of[index]].append(index)
        return split

    def _call_and_join(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[tuple[int, Any]]:
        """Call this method of every cohort and join the answers, in the order of the clients."""
        answers = self._all(method, arguments)
        return sorted((row for answer in answers for row in answer), key=lambda row: row[0])


class InProcess(Workers):
    """All clients in this process, in one cohort."""

    def __init__(self, make: MakeCohort, clients: Sequence[Client]) -> None:
        super().__init__(make, [list(clients)])
        self._cohort: Cohort | None = None

    @property
    def cohort(self) -> Cohort:
        """The cohort with every client; RunError before `start`."""
        if self._cohort is None:
            raise not_running_error()
        return self._cohort

    def start(self) -> None:
        """Make the cohort."""
        self._cohort = self._make(self._shares[0])

    def stop(self) -> None:
        """Do nothing: there is no process to end."""

    def take_times(self) -> list[dict[str, float]]:
        """An empty list: there is no process beside this one."""
        return []

    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(self.cohort, method)(*given) for given in arguments]


class WorkerProcesses(Workers):
    """Forked processes, each with a cohort and few threads. The clients are dealt out by size, largest first."""

    def __init__(self, make: MakeCohort, clients: Sequence[Client], processes: int, threads: int) -> None:
        super().__init__(make, deal(clients, processes))
        self._threads = threads
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def start(self) -> None:
        """Fork the processes."""
        context = multiprocessing.get_context("fork")
        self._pipes, self._processes = [], []
        for share in self._shares:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, [*self._pipes, ours], self._make, share, self._threads), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def stop(self) -> None:
        """End the workers; kill those that do not end by themselves."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes = []

    def take_times(self) -> list[dict[str, float]]:
        """The seconds of each worker, by part, since the last call."""
        return self._all("take_times", [()] * len(self._shares))

    def _all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call this method in every worker; the first error of any of them is raised here."""
        if not self._pipes:
            raise not_running_error()
        for number, (pipe, given) in enumerate(zip(self._pipes, arguments, strict=True)):
            try:
                pipe.send((method, given))
            except OSError as error:
                raise self._lost_error(number) from error
        answers = []
        for number, pipe in enumerate(self._pipes):
            try:
                answers.append(pipe.recv())
            except (EOFError, OSError) as error:
                raise self._lost_error(number) from error
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def _lost_error(self, number: int) -> RunError:
        process = self._processes[number]
        process.join(timeout=1)
        ended = f"exit code {process.exitcode}" if process.exitcode is not None else "no answer"
        return RunError(
            f"worker {number} of {len(self._processes)} was lost: {ended}",
            hint="the run can be resumed; if memory ran out, use fewer --jobs",
        )


def not_running_error() -> RunError:
    """The error for a call to workers that are not running."""
    return RunError("the workers of the simulation are not running", hint="use it within `with simulation:`")


def deal(clients: Sequence[Client], hands: int) -> list[list[Client]]:
    """The clients in groups of about equal work: largest first, each into the lightest group."""
    shares: list[list[Client]] = [[] for _ in range(min(hands, len(clients)))]
    loads = [0] * len(shares)
    for client in sorted(clients, key=lambda c: (-c.records, c.index)):
        lightest = loads.index(min(loads))
        shares[lightest].append(client)
        loads[lightest] += client.records + 1
    return shares


def _serve(
    pipe: Connection,
    others: list[Connection],
    make: MakeCohort,
    share: list[Client],
    threads: int,
) -> None:
    """Answer calls until the other end of the connection is closed."""
    # Ctrl-C reaches the whole group; the parent decides. Inherited ends are closed, so that a dead parent is noticed.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in others:
        other.close()
    torch.set_num_threads(threads)
    cohort: Cohort | None = None
    while True:
        try:
            with CLOCK.time("wait"):
                method, arguments = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        try:
            cohort = cohort or make(share)
            answer = getattr(cohort, method)(*arguments)
        except FedlogError as error:
            answer = error
        except Exception as error:  # whatever it is, it must reach the user
            traceback.print_exc()
            answer = RunError(f"a worker failed in {method}: {type(error).__name__}: {error}")
        try:
            pipe.send(answer)
        except OSError:
            os._exit(0)
