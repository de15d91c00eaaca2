"""Make a site run only the ClientApp that is installed there, never code that came with a run; save time on imports.

Flower sends every run as a bundle of Python files (FAB), and a SuperNode imports and runs these files. So whoever
operates the server could read a site's data with three lines of code. Here this module runs in place of the program
`flower-superexec`: it takes tasks and answers them as Flower does, but with the app from the installed package. It
refuses every other kind of task.

Flower starts a program for each message, which imports for seconds and then works for a tenth of a second. Here the
imports are made once, in a process that only forks. The fork for a task passes the message to the worker, one process
that does the work of all tasks and keeps the site's data in memory.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import select
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlog.errors import RunError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp
    from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

FLOWER_VERSION = "1.41.0"
INSTALL_FLOWER = f"pip install flwr=={FLOWER_VERSION}"
GUARDED = "flower-superexec"
WAKE_PIPE = "FEDLOG_WAKE_PIPE"  # the variable that holds the descriptor of the pipe on which a new task is announced
NAP_SECONDS = 3.0  # the longest sleep between two looks for a task, as long as a SuperNode's between two calls
REFUSED = ("flwr-clientapp", "flwr-agentapp", "flwr-serverapp", "flwr-simulation", "flwr-model", "flwr-connector")
PRELOADED = ["flwr.supernode.runtime.run_clientapp", "fedlog.flower.site.client_app"]


def check_flower_version() -> None:
    """Raise RunError unless the installed Flower has the version whose internal functions this package replaces."""
    import flwr

    if flwr.__version__ != FLOWER_VERSION:
        raise RunError(f"expected flwr {FLOWER_VERSION} at this site, found: {flwr.__version__}", hint=INSTALL_FLOWER)


def patch_flower(module: Any, name: str, ours: object, expected: object = callable) -> None:
    """Replace the attribute `name` of a Flower module by `ours`.

    Raise RunError if the present value of the attribute is not `expected`; the default accepts any function.
    """
    found = getattr(module, name, None)
    if not (callable(found) if expected is callable else found == expected):
        raise RunError(
            f"expected {name} in {module.__name__} as of flwr {FLOWER_VERSION}, found: {found!r}", hint=INSTALL_FLOWER
        )
    setattr(module, name, ours)


def write_guard_programs(folder: Path) -> Path:
    """Write programs into the folder that replace Flower's own, and return the folder.

    The substitute of `flower-superexec` starts the guard, the others only refuse. A SuperNode with this folder first on
    its PATH runs no code that comes from a server.
    """
    folder.mkdir(parents=True, exist_ok=True)
    python = shlex.quote(sys.executable)
    _write_program(folder / GUARDED, f'exec {python} -m fedlog.flower.site.guard "$@"')
    for name in REFUSED:
        _write_program(folder / name, f"echo 'refused: this site runs no {name} task' >&2; exit 1")
    return folder


def _write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def load_installed_app(*_: object) -> ClientApp:
    """Return the ClientApp of the installed package; ignore which app the run names."""
    from fedlog.flower.site.client_app import app

    return app


def serve_task(
    runtime_api_address: str, token: str, insecure: bool, parent: int | None, worker: tuple[str, bytes]
) -> None:
    """Answer one message as Flower's program `flwr-clientapp` does, but with the app installed at the site."""
    from flwr.supernode.runtime import run_clientapp

    from fedlog.flower.site.client_app import use_worker

    use_worker(*worker)
    patch_flower(run_clientapp, "install_from_fab", lambda *_, **__: None)
    patch_flower(run_clientapp, "install_app_dependencies", lambda *_, **__: None)
    patch_flower(run_clientapp, "get_load_client_app_fn", lambda **_: load_installed_app)
    run_clientapp.run_clientapp(runtime_api_address, token, insecure, parent_pid=parent)


def run_worker(socket: str, secret: bytes) -> None:
    """Run `serve_frames` in the worker process. Its module is imported only here: the guard does not need it."""
    from fedlog.flower.site.client_app import serve_frames

    serve_frames(socket, secret)


class ForkingExecutor:
    """Runs each task of Flower's SuperNode in a fork of a process that has already loaded all modules.

    It takes the place of Flower's `Executor`: `flower-superexec` calls the methods, so their names are Flower's.
    """

    def __init__(self) -> None:
        from multiprocessing import forkserver

        # A fork of this very process would copy the locks of its threads as they are; the fork server has no threads.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()
        self._start_worker()

    def _start_worker(self) -> None:
        folder = tempfile.mkdtemp(prefix="fedlog-site-")  # readable by its owner alone; the worker takes it away
        self._address = (f"{folder}/frames", secrets.token_bytes(32))
        # A daemon is ended with this process. Any other child would be waited for, and the worker waits for our end.
        self._worker = self._context.Process(target=run_worker, args=self._address, daemon=True)
        self._worker.start()

    def get_eligible_capacity(self, supported: set[Any], **_: object) -> tuple[set[Any], set[str]]:
        """Return which of the `supported` kinds of tasks this executor takes: ClientApps alone.

        Overrides a method of Flower. The second set that Flower expects, of AgentApps, is always empty.
        """
        from flwr.supercore.constant import TaskType

        return supported & {TaskType.CLIENT_APP}, set()

    def wait_for_capacity(self, *_: object, **__: object) -> None:
        """Return at once: a task can always start."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the task; refuse a task that is no ClientApp or asks for packages to be installed."""
        from flwr.supercore.constant import TaskType
        from flwr.supercore.superexec.executor.types import LaunchResult

        multiprocessing.active_children()  # reaps those that have ended
        if spec.task_type != TaskType.CLIENT_APP or spec.runtime_dependency_install:
            return LaunchResult.failed(f"refused: this site runs no {spec.task_type} task")
        if not self._worker.is_alive():
            self._start_worker()
        task = (spec.runtime_api_address, spec.token, spec.insecure, spec.parent_pid, self._address)
        self._context.Process(target=serve_task, args=task, daemon=True).start()
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Return at once: there is no pool of processes to manage."""

    def close(self) -> None:
        """Return at once: the worker ends with this process."""


class WakeableSleep:
    """Stands in for the module `time` in Flower's executor: its `sleep` ends as soon as there is a task."""

    def __init__(self, pipe: int) -> None:
        """Store the file descriptor of the pipe on which the SuperNode announces a task."""
        self._pipe: int | None = pipe

    def sleep(self, seconds: float) -> None:
        """Sleep until the SuperNode has a task, at most 3 s; if the SuperNode has ended, sleep for `seconds`."""
        if self._pipe is None:
            time.sleep(seconds)
        elif select.select([self._pipe], [], [], NAP_SECONDS)[0] and not os.read(self._pipe, 4096):
            self._pipe = None

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute from the real `time` module."""
        return getattr(time, name)


def main() -> None:
    """Run Flower's `flower-superexec` with an executor that runs only the app installed at this site."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec import run_superexec

    check_flower_version()
    if pipe := os.environ.pop(WAKE_PIPE, None):
        os.set_inheritable(int(pipe), False)
        patch_flower(run_superexec, "time", WakeableSleep(int(pipe)), expected=time)
    executor = ForkingExecutor()
    patch_flower(run_superexec, "get_executor", lambda *_, **__: executor)
    try:
        flower_superexec()
    except KeyboardInterrupt:
        # This is how Flower ends this program when the SuperNode is gone. Both write to one log, whose last lines must
        # be those of the SuperNode, which say why it ended: so no traceback here.
        sys.exit(1)


if __name__ == "__main__":
    main()
