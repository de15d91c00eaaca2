"""Laws of written files and of locks, with real limits and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedlog.errors import InputError
from fedlog.files import lock
from fedlog.files.durable import append_line, create_file, is_draft, move_file, move_folder, write_file
from fedlog.files.lock import LockTakenError, lock_file, lock_folder
from fedlog.files.names import did_you_mean, import_callable
from fedlog.files.toml import parse_toml, read_toml
from fedlog.privacy.accounting import NoiseKind, RandomSource, Release
from fedlog.privacy.guarantee import Budget, Trust, Unit
from fedlog.privacy.release_log import read_log, record_release, start_or_resume_log

LIMIT = 1000
# A limit on the size of files acts as a full disk does: first a short write, then an error.
LIMITED = f"""
import resource, sys
from pathlib import Path
sys.dont_write_bytecode = True  # half a file of it would break every later import
resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}))
path, code = Path(sys.argv[1]), sys.stdin.read()
try:
    exec(code)
except OSError as error:
    named = str(error).endswith((f": '{{path}}'", f": '{{path.with_name('b')}}'"))
    sys.exit(error.errno if named else 99)
sys.exit(0)
"""
EFBIG = 27
SENT = Release(
    round=1,
    exchange="statistics",
    unit=Unit.RECORD,
    trust=Trust.LOCAL,
    noise=NoiseKind.FLOAT,
    entropy=RandomSource.SEED,
    sigma=1000.0,
    sensitivity=1.0,
    coordinates=3,
)


def limited(code: str, path: Path) -> int:
    """The exit code of this code in a process in which no file can be longer than LIMIT."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], input=code, text=True, check=False)
    return done.returncode


@pytest.mark.parametrize(
    "call",
    [
        "write_file(path, 'new' * 500)",
        "create_file(path.with_name('b'), b'new' * 500)",
        "append_line(path, 'n' * 999)",
        "log_event(path, 'n' * 999)",
    ],
)
def test_a_write_that_does_not_fit_raises_and_leaves_what_was_there(tmp_path: Path, call: str) -> None:
    path = tmp_path / "a"
    path.write_text("old\n")
    code = f"""
from fedlog.files.durable import write_file, create_file, append_line
from fedlog.flower.folders.folder import log_event
{call}
"""
    assert limited(code, path) == EFBIG
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_release_that_cannot_be_recorded_in_full_is_not_made(tmp_path: Path) -> None:
    path, budget = tmp_path / "privacy.jsonl", Budget(1.0, 1e-5)
    start_or_resume_log(path, budget)
    while path.stat().st_size < LIMIT - 200:
        record_release(path, SENT)
    before = path.read_bytes()
    assert LIMIT - 300 < len(before) < LIMIT  # part of another line fits
    code = """
from fedlog.privacy.release_log import read_log, record_release
record_release(path, read_log(path).events[-1])
path.with_name("left").touch()
"""
    assert limited(code, path) == EFBIG
    assert not (tmp_path / "left").exists()
    assert path.read_bytes() == before
    assert len(read_log(path).releases) == before.count(b"\n") - 1


def test_a_file_is_replaced_as_a_whole_and_its_draft_is_known(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "config.json"
    write_file(path, "one")
    write_file(path, b"two", 0o600)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        create_file(path, "three")
    assert path.read_bytes() == b"two"
    assert is_draft(tmp_path / ".config.json.0123abcd.part", "config.json")
    assert not is_draft(path, "config.json")
    move_file(path, tmp_path / "moved")
    append_line(tmp_path / "moved", "!")
    assert (tmp_path / "moved").read_text() == "two!\n"
    for name in ("draft", "target"):
        write_file(tmp_path / name / name, name)
    move_folder(tmp_path / "draft", tmp_path / "target")
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["draft"]


# Whoever finds the mark of another one inside is wrong; every third one also removes what the lock lies on.
CROWD = """
import os, sys, time
from pathlib import Path
from fedlog.files.lock import lock_file, lock_folder
place, mark, number = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
for turn in range(12):
    with (lock_folder if place.suffix == "" else lock_file)(place):
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        time.sleep(0.002)
        if (turn + number) % 3 == 0:
            place.rmdir() if place.is_dir() else place.unlink()
        mark.unlink()
"""


@pytest.mark.parametrize("place", ["run", "run.lock"])
def test_one_process_at_a_time_is_inside_also_when_the_lock_is_removed(tmp_path: Path, place: str) -> None:
    command = [sys.executable, "-c", CROWD, str(tmp_path / place), str(tmp_path / "mark")]
    crowd = [subprocess.Popen([*command, str(number)], stderr=subprocess.PIPE) for number in range(4)]
    said = [process.communicate(timeout=300)[1] for process in crowd]
    assert [process.returncode for process in crowd] == [0] * 4, said


HOLDER = """
import os, sys, time
from pathlib import Path
from fedlog.files.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    worker = os.fork()
    if worker:
        print(worker, flush=True)
    time.sleep(120)
"""


def test_a_killed_holder_is_followed_once_its_workers_are_gone(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    worker = int(holder.stdout.readline())
    try:
        holder.kill()
        holder.wait()
        with pytest.raises(LockTakenError), lock_folder(tmp_path, 0.2):
            pass
    finally:
        os.kill(worker, signal.SIGKILL)
        holder.stdout.close()
    start = time.monotonic()
    with lock_folder(tmp_path, 60):
        assert time.monotonic() - start < 60
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_given_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), lock_file(tmp_path / "lock"):
        raise ValueError("inside")
    with lock_file(tmp_path / "lock", 0), pytest.raises(LockTakenError), lock_file(tmp_path / "lock", 0):
        pass


def test_toml_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    with pytest.raises(InputError, match=f"cannot read the plan {path}: No such file") as found:
        read_toml(path, "the plan", "make one")
    assert found.value.hint == "make one"
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match=f"{path}: not UTF-8 text"):
        read_toml(path, "the plan")
    for wrong in ("a = ", "a = " + "[" * 100_000):
        with pytest.raises(InputError, match="here: not valid TOML"):
            parse_toml(wrong, "here")
    path.write_text('a = "é"', encoding="utf-8")
    assert read_toml(path, "the plan") == {"a": "é"}


def test_names_are_guessed_or_listed_and_imported_or_refused() -> None:
    assert did_you_mean("fedlgo", ["fedlog", "local"], "one of") == "did you mean fedlog?"
    assert did_you_mean("x", iter(["fedlog"]), "one of fedlog") == "one of fedlog"
    assert import_callable("pathlib:Path", "body") is Path
    for wrong in ("no_such:thing", "pathlib:Nothing", ":x"):
        with pytest.raises(InputError, match=f"body {wrong} cannot be imported"):
            import_callable(wrong, "body")
    with pytest.raises(InputError, match="body sys:path to be a function or a class, found: list"):
        import_callable("sys:path", "body")


@pytest.mark.parametrize("place", ["run", "run.lock"])
def test_a_lock_on_what_was_removed_meanwhile_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = tmp_path / place
    hold = lock_file if path.suffix else lock_folder
    take, removed = lock.lock_descriptor, []

    def take_late(descriptor: int, *, blocking: bool) -> bool:
        if not removed:  # the holder before, between our opening and our locking
            removed.append(path.unlink() if path.is_file() else path.rmdir())
        return take(descriptor, blocking=blocking)

    monkeypatch.setattr(lock, "lock_descriptor", take_late)
    with hold(path), pytest.raises(LockTakenError), hold(path, 0):
        pass
    assert removed
