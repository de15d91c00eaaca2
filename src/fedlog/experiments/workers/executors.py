"""Carry out tasks in processes on this machine, or on a Dask cluster with workers that see the same folder."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedlog.errors import InputError
from fedlog.experiments.workers.cell_process import CellProcess, Outcome, run_task_in_new_process

DASK = "dask://"


class LocalProcesses:
    """Carries out tasks in at most `jobs` processes of one core each on this machine."""

    def __init__(self, jobs: int) -> None:
        if jobs < 1:
            raise InputError(
                f"the number of processes must be at least 1, found: {jobs}", hint="--jobs 1, or leave out --jobs"
            )
        self._jobs = jobs
        self._waiting: deque[str] = deque()
        self._running: list[CellProcess] = []

    def submit(self, tasks: Sequence[str]) -> None:
        """Put these tasks into a queue; `wait` starts them."""
        self._waiting.extend(tasks)

    def wait(self, seconds: float) -> list[Outcome]:
        """Start waiting tasks, wait at most this long, and return the outcomes of the tasks that have ended."""
        deadline = time.monotonic() + seconds
        while True:
            while self._waiting and len(self._running) < self._jobs:
                self._running.append(CellProcess(self._waiting.popleft()))
            ended = [running for running in self._running if running.process.poll() is not None]
            self._running = [running for running in self._running if running not in ended]
            if ended or not self._running or time.monotonic() >= deadline:
                return [running.read_outcome() for running in ended]
            time.sleep(0.05)

    def stop(self) -> None:
        """Empty the queue and kill the running processes; their records stay."""
        self._waiting.clear()
        for running in self._running:
            running.process.kill()
            running.process.wait()
            running.close()
        self._running = []


class DaskCluster:
    """Carries out tasks on a running Dask cluster; each thread of a worker runs one process at a time.

    All machines must see the same results folder: if a worker dies, another worker continues from its checkpoint.
    Tasks that are running when `stop` is called run to their end.
    """

    def __init__(self, address: str, out: Path) -> None:
        from distributed import Client, as_completed  # an extra

        try:
            self._client: Any = Client(address.replace(DASK, "tcp://", 1), timeout=20)
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(
                f"no Dask scheduler at {address}: {error}", hint="start one: dask scheduler --port 8786"
            ) from error
        self._ended: Any = as_completed([], with_results=False)
        self._tasks: dict[str, str] = {}
        try:
            self._check_folder(address, out)
        except BaseException:
            self._client.close()
            raise

    def _check_folder(self, address: str, out: Path) -> None:
        """Refuse a cluster without workers, and workers that do not see the results folder."""
        if not self._client.scheduler_info()["workers"]:
            where = address.removeprefix(DASK)
            raise InputError(f"the Dask cluster at {address} has no worker", hint=f"start one: dask worker {where}")
        with _put_probe_file(out) as probe:
            seen: dict[str, bool] = self._client.run(os.path.exists, str(probe.resolve()))
        blind = sorted(worker for worker, sees in seen.items() if not sees)
        if blind:
            raise InputError(
                f"these Dask workers do not see the results folder {out}: {', '.join(blind)}",
                hint="give --out a folder on a file system that all machines share",
            )

    def submit(self, tasks: Sequence[str]) -> None:
        """Hand the tasks to the scheduler."""
        for task in tasks:
            future = self._client.submit(run_task_in_new_process, task, key=f"cell-{uuid.uuid4().hex}", pure=False)
            self._tasks[future.key] = task
            self._ended.add(future)

    def wait(self, seconds: float) -> list[Outcome]:
        """Wait at most this long, and return the outcomes of the tasks that have ended."""
        deadline = time.monotonic() + seconds
        while self._tasks and self._ended.is_empty() and time.monotonic() < deadline:
            time.sleep(0.05)
        if not self._tasks or self._ended.is_empty():
            return []
        return [self._read_outcome(future) for future in self._ended.next_batch(block=False)]

    def _read_outcome(self, future: Any) -> Outcome:
        task = self._tasks.pop(future.key)
        try:
            return Outcome(**json.loads(future.result()))
        except Exception as error:  # a lost worker, a cancelled task: reported like any failed cell
            return Outcome(json.loads(task)["cell"], None, f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        """Cancel the tasks that were not started, and close the connection."""
        self._client.cancel(list(self._ended.futures)) if self._tasks else None
        self._client.close()


Executor = LocalProcesses | DaskCluster  # progress is read from the records of the cells


@contextmanager
def _put_probe_file(out: Path) -> Iterator[Path]:
    """Keep an empty file in the results folder during the `with` block, to find workers that do not see it."""
    probe = out / f".probe-{uuid.uuid4().hex}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.touch()
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror}", hint="choose another --out") from error
    try:
        yield probe
    finally:
        probe.unlink()


def make_executor(name: str, jobs: int, out: Path) -> Executor:
    """Make the executor with this name: `processes`, or `dask://host:port`."""
    if name == "processes":
        with _put_probe_file(out):
            return LocalProcesses(jobs)
    if name.startswith(DASK):
        return DaskCluster(name, out)
    raise InputError(f"unknown executor: {name}", hint="--executor processes, or --executor dask://host:port")
