"""Worker processes, each with a cohort of clients; they and the server exchange only what a network would carry.

Small computations do not gain from threads, so it is fastest to have one process with a single thread for each core.
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

from fedlog.algorithms.interface import Exchange, Phase
from fedlog.engine.clients import Client
from fedlog.engine.protocol.cohort import Cohort, Score
from fedlog.engine.training.tasks import CLOCK
from fedlog.errors import FedlogError, RunError
from fedlog.settings.training import HeldOutRecords

Uploads = list[tuple[int, bytes | None]]
Scores = list[tuple[int, tuple[Score, ...]]]
MakeCohort = Callable[[list[Client]], Cohort]


class Workers(ABC):
    """All clients of a run, divided into cohorts; subclasses keep the cohorts in this process or in others."""

    def __init__(self, make: MakeCohort, groups: list[list[Client]]) -> None:
        self._make = make
        self._groups = groups
        self._cohort_of = {client.index: number for number, group in enumerate(groups) for client in group}

    @abstractmethod
    def start(self) -> None:
        """Make the cohorts, or start the processes that make them."""

    def stop(self) -> None:  # noqa: B027 (nothing to do in this process)
        """Stop the processes, if there are any."""

    def read_and_reset_times(self) -> list[dict[str, float]]:
        """The seconds of each worker process since the last call, by part of the work; [] without worker processes."""
        return []

    def count_clients_trained_together(self) -> int:
        """The largest number of clients that one worker trains together."""
        counts: list[int] = self._call_all("count_clients_trained_together", [()] * len(self._groups))
        return max(counts)

    @abstractmethod
    def _call_all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call this method of each cohort, with that cohort's entry of `arguments`, and return the results."""

    def receive_broadcast(self, blob: bytes) -> None:
        """Give a broadcast to all clients."""
        self._call_all("receive_broadcast", [(blob,)] * len(self._groups))

    def receive_own_broadcasts(self, blobs: Mapping[int, bytes], unknown: Collection[int] = ()) -> None:
        """Give each client its own broadcast; those in `unknown` first forget what they had, because the server did."""
        split = self._split_by_cohort(list(blobs))
        parts = [
            ({index: blobs[index] for index in own}, [index for index in own if index in unknown]) for own in split
        ]
        self._call_all("receive_own_broadcasts", parts)

    def make_encoded_uploads(self, round_number: int, exchange: Exchange, indices: Sequence[int]) -> Uploads:
        """Do the local work of these clients and return their uploads, in the clients' order."""
        return self._call_and_join(
            "make_encoded_uploads", [(round_number, exchange, own) for own in self._split_by_cohort(indices)]
        )

    def evaluate(self, indices: Sequence[int], held_out: HeldOutRecords, closing: tuple[Phase, ...] = ()) -> Scores:
        """The scores of these clients, in the clients' order; models are first trained by the `closing` phases."""
        return self._call_and_join("evaluate", [(own, held_out, closing) for own in self._split_by_cohort(indices)])

    def save_models(self, closing: tuple[Phase, ...], folder: Path) -> None:
        """Write every client's personal model into the folder."""
        self._call_all("save_models", [(closing, [client.index for client in own], folder) for own in self._groups])

    def save(self, folder: Path) -> None:
        """Write the state of all clients into the folder."""
        self._call_all("save", [(folder / f"clients-{number}.safetensors",) for number in range(len(self._groups))])

    def load(self, folder: Path) -> None:
        """Read the state of all clients from the folder, even if `save` was called with another number of workers."""
        files = sorted(folder.glob("clients-*.safetensors"))
        self._call_all("load", [(files,)] * len(self._groups))

    def _split_by_cohort(self, indices: Sequence[int]) -> list[list[int]]:
        """Split the numbers of clients by cohort: one list for each cohort."""
        split: list[list[int]] = [[] for _ in self._groups]
        for index in indices:
            split[self._cohort_of[index]].append(index)
        return split

    def _call_and_join(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[tuple[int, Any]]:
        """Call a method of every cohort and return all results in the clients' order."""
        answers = self._call_all(method, arguments)
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
            raise make_not_running_error()
        return self._cohort

    def start(self) -> None:
        """Make the cohort."""
        self._cohort = self._make(self._groups[0])

    def _call_all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [getattr(self.cohort, method)(*given) for given in arguments]


class WorkerProcesses(Workers):
    """Worker processes made by fork, each with a cohort; each gets about the same number of training records."""

    def __init__(self, make: MakeCohort, clients: Sequence[Client], processes: int, threads: int) -> None:
        super().__init__(make, split_by_work(clients, processes))
        self._threads = threads
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def start(self) -> None:
        """Start the worker processes by fork."""
        context = multiprocessing.get_context("fork")
        self._pipes, self._processes = [], []
        for group in self._groups:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_answer_calls, args=(theirs, [*self._pipes, ours], self._make, group, self._threads), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def stop(self) -> None:
        """Stop the processes; kill those that do not end within two seconds."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=2)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes = []

    def read_and_reset_times(self) -> list[dict[str, float]]:
        """The seconds of each worker process since the last call, by part of the work."""
        return self._call_all("read_and_reset_times", [()] * len(self._groups))

    def _call_all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call this method in every worker process and return the results; raise the first error, if any."""
        if not self._pipes:
            raise make_not_running_error()
        for number, (pipe, given) in enumerate(zip(self._pipes, arguments, strict=True)):
            try:
                pipe.send((method, given))
            except OSError as error:
                raise self._make_worker_ended_error(number) from error
        answers = []
        for number, pipe in enumerate(self._pipes):
            try:
                answers.append(pipe.recv())
            except (EOFError, OSError) as error:
                raise self._make_worker_ended_error(number) from error
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def _make_worker_ended_error(self, number: int) -> RunError:
        process = self._processes[number]
        process.join(timeout=1)
        ended = f"exit code {process.exitcode}" if process.exitcode is not None else "no answer"
        return RunError(
            f"worker {number} of {len(self._processes)} ended unexpectedly: {ended}",
            hint="resume the run; if memory ran out, use fewer --jobs",
        )


def make_not_running_error() -> RunError:
    """The error for a call to workers that are not running."""
    return RunError("the workers of the simulation are not running", hint="use the simulation in `with simulation:`")


def split_by_work(clients: Sequence[Client], groups: int) -> list[list[Client]]:
    """Divide the clients into groups with about equal numbers of training records.

    Clients are placed one by one, the largest first, each in the group that has the fewest records so far.
    """
    divided: list[list[Client]] = [[] for _ in range(min(groups, len(clients)))]
    loads = [0] * len(divided)
    for client in sorted(clients, key=lambda c: (-c.records, c.index)):
        lightest = loads.index(min(loads))
        divided[lightest].append(client)
        loads[lightest] += client.records + 1
    return divided


def _answer_calls(
    pipe: Connection,
    pipes_to_close: list[Connection],
    make: MakeCohort,
    clients: list[Client],
    threads: int,
) -> None:
    """Run a worker process: call the methods of its cohort that the pipe asks for, until the pipe is closed."""
    # Ctrl-C reaches all processes, but the parent decides. Inherited pipes are closed, to notice a dead parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in pipes_to_close:
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
            cohort = cohort or make(clients)
            answer = getattr(cohort, method)(*arguments)
        except FedlogError as error:
            answer = error
        except Exception as error:  # any error must reach the user
            traceback.print_exc()
            answer = RunError(
                f"a worker failed in {method}: {type(error).__name__}: {error}", hint="see its traceback above"
            )
        try:
            pipe.send(answer)
        except OSError:
            os._exit(0)
