"""Run cells of a table in a separate process, which reads a task (a line of JSON) and prints the outcome.

Standard input stays open as long as the outcome is wanted. When it closes (the runner was killed, a machine of the
cluster was lost) the process ends at once; its records so far are on disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, cast

import torch

from fedlog.data.catalog import load_federation
from fedlog.data.public_data_sets import DATA_VARIABLE
from fedlog.errors import FedlogError
from fedlog.experiments.run.execute import RunFilesToKeep, execute, lock_run_folder
from fedlog.experiments.run.scores import execute_and_score
from fedlog.experiments.tables.cells import Cell, ExperimentKind
from fedlog.experiments.tables.synthetic import sweep_local_iterations
from fedlog.settings.spec import RunSpec, convert_spec_to_json, make_spec


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task. One cell (run) has its accuracy or an error; several runs have no accuracy.

    `error` is also set if the process ended without an answer.
    """

    cell: str
    accuracy: float | None
    error: str | None
    failed: dict[str, str] = field(default_factory=dict)  # the errors of its runs, by the name of the run


RUN_AND_SCORE = "SCORED"  # the work of a task whose runs are scored on all held-out rows


def make_cell_task(cell: Cell, data_dir: Path | None) -> str:
    """Return the task to run one cell (a row of a table with one seed), as a line of JSON."""
    return make_task(cell.name, cell.experiment.kind.name, [(cell.name, cell.folder, cell.spec)], data_dir)


def make_task(name: str, work: str, runs: Sequence[tuple[str, Path, RunSpec]], data_dir: Path | None) -> str:
    """Return a task as a line of JSON: the runs to make, each given by name, folder and settings.

    `work` says what to do: `RUN_AND_SCORE` or, for a cell of a table, the name of its `ExperimentKind`.
    """
    listed = [
        {"name": run, "folder": str(path.resolve()), "spec": convert_spec_to_json(spec)} for run, path, spec in runs
    ]
    # The data folder is not in the specification: its file is committed and must not name a folder of this machine.
    where = None if data_dir is None else str(data_dir.resolve())
    return json.dumps({"cell": name, "work": work, "runs": listed, "data_dir": where})


def make_process_command() -> list[str]:
    """Return the command that starts a process which waits for a task on its standard input."""
    return [sys.executable, "-m", "fedlog.experiments.workers.cell_process"]


class CellProcess:
    """A process that carries out a task; its output goes to files, because a pipe could fill up."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._stdout: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._stderr: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            make_process_command(),
            stdin=subprocess.PIPE,
            stdout=self._stdout,
            stderr=self._stderr,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            # Ctrl-C reaches the runner alone, which then ends its processes.
            start_new_session=True,
        )
        self._stdin = cast(IO[str], self.process.stdin)  # a pipe, as asked for
        self._stdin.write(task + "\n")
        self._stdin.flush()

    def read_outcome(self) -> Outcome:
        """Read the outcome that the ended process printed, or make an error from its last lines; close its files."""
        with closing(self):
            self._stdout.seek(0)
            self._stderr.seek(0)
            try:
                return Outcome(**json.loads(self._stdout.read().strip().splitlines()[-1]))
            except (IndexError, ValueError, TypeError):
                code = self.process.returncode
                last = " | ".join(self._stderr.read().strip().splitlines()[-3:]) or "no message"
                message = f"the process ended with code {code} and no answer: {last}"
                return Outcome(json.loads(self._task)["cell"], None, message)

    def close(self) -> None:
        """Close the process's files; a process that still runs then ends, because its input is closed."""
        self._stdin.close()
        self._stdout.close()
        self._stderr.close()


def run_task_in_new_process(task: str) -> str:
    """Carry out the task in a new process and return its outcome as JSON; the workers of a cluster call this."""
    with closing(CellProcess(task)) as running:
        running.process.wait()
        return json.dumps(running.read_outcome().__dict__)


def execute_task(task: Mapping[str, Any]) -> Outcome:
    """Execute the runs of the task in this process, except finished ones; if one fails, the others are still run."""
    if task["data_dir"] is not None:
        os.environ[DATA_VARIABLE] = task["data_dir"]
    accuracy, failed, load = None, dict[str, str](), lru_cache(maxsize=1)(load_federation)
    for run in task["runs"]:
        folder = Path(run["folder"])
        with _store_failure(failed, run["name"]):
            spec = make_spec(run["spec"], run["name"])
            if task["work"] == RUN_AND_SCORE:
                execute_and_score(spec, folder, load=load)
            elif task["work"] == ExperimentKind.SYNTHETIC.name:
                with lock_run_folder(folder):
                    accuracy = sweep_local_iterations(spec, folder)
            else:
                accuracy = execute(spec, folder, keep=RunFilesToKeep.RECORDS_ONLY).accuracy_mean_over_clients
    return Outcome(task["cell"], accuracy, failed.get(task["cell"]), failed)


@contextmanager
def _store_failure(failed: dict[str, str], name: str) -> Iterator[None]:
    """Catch any exception in the block, and store its message in `failed` under this name."""
    try:
        yield
    except FedlogError as error:
        failed[name] = error.one_line
    except Exception as error:
        traceback.print_exc()
        failed[name] = f"{type(error).__name__}: {error}"


def _exit_when_input_closes() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> int:
    """Read a task from standard input, carry it out, print the outcome and exit with code 0."""
    task = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_when_input_closes, daemon=True).start()
    torch.set_num_threads(1)
    outcome = execute_task(task)
    print(json.dumps(outcome.__dict__), flush=True)
    # Not sys.exit: the thread above still waits for input that may never end.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
