"""Start and watch Flower's programs, and end them together with all processes that they started."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fedlog.errors import InputError, RunError
from fedlog.files.durable import write_file

# Flower looks for new tasks once a second by default. A round has a few messages, and each would wait that long.
TASK_POLL_SECONDS = "0.2"
STOP_SECONDS = 8.0
KILL_SECONDS = 10.0
# The start time of a process is computed from the machine's, which the system may correct a little.
SAME_START_SECONDS = 1.0
INSTALL = 'pip install "fedlog[federate]"'
Say = Callable[[str], None]  # shows a line of text to a person


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and the environment variables to set for it."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The line that an operator could type: the most important environment variables, then the command."""
        shown = {name: value for name, value in self.environment.items() if name in SHOWN}
        return " ".join(
            [*(f"{name}={shlex.quote(value)}" for name, value in shown.items()), shlex.join(self.arguments)]
        )


SHOWN = ("FLWR_HOME", "FEDLOG_FEDERATION")


def make_flower_environment(
    flower_home: Path, extra: Mapping[str, str] | None = None, first_on_path: Path | None = None
) -> dict[str, str]:
    """Make the environment variables for Flower's programs: PATH, home folder, no telemetry and no update check.

    Flower finds its programs on the PATH, so the folder of our interpreter must be on the PATH, even if the virtual
    environment is not activated; `first_on_path` comes before it. NO_PROXY keeps connections within this machine away
    from a proxy.
    """
    folders = [*([str(first_on_path)] if first_on_path else []), str(Path(sys.executable).parent)]
    path = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])
    direct = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1", "localhost"]))
    return {
        "PATH": path,
        "FLWR_HOME": str(flower_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": TASK_POLL_SECONDS,
        "NO_PROXY": direct,
        "no_proxy": direct,
        "PYTHONUNBUFFERED": "1",
        **(extra or {}),
    }


def find_program(name: str) -> str:
    """Return the path of a program in the folder of this Python interpreter; raise InputError if it is missing."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise InputError(
            f"expected Flower's program in the folder of the Python interpreter, found none: {path}",
            hint=INSTALL,
        )
    return str(path)


def find_free_port() -> int:
    """Find a port of the loopback interface on which no program listens at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, eq=False)
class RunningProgram:
    """A program that was started; its output goes to the log file."""

    command: Command
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int  # the size of the log before this process wrote to it

    @property
    def exit_code(self) -> int | None:
        """The exit code of the program; None while it runs. Reading it also removes an ended (zombie) process."""
        return self.process.poll()

    def read_log_end(self, lines: int = 12) -> str:
        """Read the last lines that this process wrote to the log."""
        written = self.log.read_bytes()
        if len(written) >= self.log_start:  # else the log was rotated
            written = written[self.log_start :]
        return "\n".join(written.decode(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End the program and all processes that it started."""
        stop_programs(self)


def stop_programs(*running: RunningProgram) -> None:
    """End these programs and all processes that they started; kill those that do not end in time."""
    below = [child for each in running for child in find_descendants(each.process.pid)]
    alive = [each.process for each in running if each.exit_code is None]
    for process in alive:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in alive:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # Flower's helpers notice within 0.2 s that their parent is gone and then finish by themselves.
    _wait_for_end(below, STOP_SECONDS)
    _kill_processes(below)
    for each in running:
        _get_pid_path(each.log).unlink(missing_ok=True)


def start_program(command: Command, log: Path, say: Say | None = None) -> RunningProgram:
    """Start the program in a session of its own, so that a Ctrl-C in our terminal does not reach it.

    Each log file belongs to one program. If that program still runs from an earlier start, because the process that
    started it was killed, end it first: an old server would occupy the port, and an old SuperNode would stay connected
    in place of the new one.
    """
    if say is not None:
        say(f"$ {command}")
    log.parent.mkdir(parents=True, exist_ok=True)
    _end_earlier_process(log)
    with log.open("ab") as output:
        log_start = output.tell()
        try:
            process = subprocess.Popen(
                command.arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **command.environment},
                start_new_session=True,
            )
        except FileNotFoundError:
            raise RunError(f"cannot start {command.arguments[0]}: there is no such program", hint=INSTALL) from None
    with suppress(psutil.NoSuchProcess):  # it has ended already
        started = psutil.Process(process.pid).create_time()
        write_file(_get_pid_path(log), f"{process.pid} {started} {_identify_log(log)}\n")
    return RunningProgram(command, process, log, log_start)


def run_command(command: Command, timeout_seconds: float = 180.0) -> str:
    """Run a short command of Flower and return its output; raise RunError if it fails or takes too long."""
    try:
        done = subprocess.run(
            command.arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, **command.environment},
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"expected an answer of `{command}` within {timeout_seconds:.0f} s, found none",
            hint="try again when the machine is less busy",
        ) from None
    if done.returncode != 0:
        last = " ".join((done.stderr or done.stdout).split())[-400:]
        raise RunError(
            f"expected success from `{shlex.join(command.arguments)}`, found exit code {done.returncode}: {last}"
        )
    return done.stdout


def wait_for_port(running: RunningProgram, port: int, host: str = "127.0.0.1", timeout_seconds: float = 180.0) -> None:
    """Wait until the program accepts connections on the port; raise RunError if it ends or takes too long."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        if running.exit_code is not None:
            break
        try:
            with socket.create_connection((host, port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    found = "nothing" if running.exit_code is None else f"exit code {running.exit_code}"
    name = Path(running.command.arguments[0]).name
    raise RunError(
        f"expected {name} to listen on port {port}, found {found}; its log ends:\n{running.read_log_end()}",
        hint=f"does another program use port {port}?",
    )


def _get_pid_path(log: Path) -> Path:
    return log.with_suffix(".pid")


def _end_earlier_process(log: Path) -> None:
    """If the program of this log still runs from an earlier start, end it and all processes that it started."""
    path = _get_pid_path(log)
    if not path.exists():
        return
    with suppress(psutil.NoSuchProcess, ValueError):
        number, since, place = path.read_text().strip().split(" ", 2)
        earlier = psutil.Process(int(number))
        # Not another process that got the same number later, nor the process of the folder that this one is a copy of.
        if abs(earlier.create_time() - float(since)) < SAME_START_SECONDS and place == _identify_log(log):
            _kill_processes([earlier, *find_descendants(earlier.pid)])
    path.unlink()


def _identify_log(log: Path) -> str:
    """Return a text that identifies this log file until the next boot.

    A copy of the file has another text, so that a start in a copy of a folder does not end the original's program.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    found = log.stat()
    return f"{boot.read_text().strip() if boot.exists() else 'unknown'} {found.st_dev}:{found.st_ino}"


def _kill_processes(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _wait_for_end(processes, KILL_SECONDS)  # a killed process ends when it runs next: later on a busy machine


def _wait_for_end(processes: Sequence[psutil.Process], seconds: float) -> None:
    """Wait until all these processes have ended, or until the time is over."""
    deadline = time.monotonic() + seconds
    while any(map(_is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)


def find_descendants(pid: int) -> list[psutil.Process]:
    """Find all processes that this process started, directly or indirectly; none if this process has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_alive(process: psutil.Process) -> bool:
    """Whether the process still runs. A zombie process has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
