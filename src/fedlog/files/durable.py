"""Write files that survive a crash: every byte is on the disk when a function returns, or the function raises OSError.

A file is first written under another name in the same folder (a draft) and then renamed, so a reader, or a restart
after a crash, finds either the old content or the new content. If the disk is full while a line is appended, the part
of the line that was written is removed.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PUBLIC_MODE = 0o666  # less the user's umask
PRIVATE_MODE = 0o600
# The system's error numbers for: no space left, the user's quota is used up, the file is larger than allowed.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# With less free space than this a disk counts as nearly full. What a round writes is far smaller.
LEAST_FREE_BYTES = 16 * 2**20


def write_file(path: Path, content: str | bytes, mode: int = PUBLIC_MODE) -> None:
    """Write this content to the file, replacing it in one step; create its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random name: two processes that write the same file must not share a draft.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with _name_file_in_errors(path):
        try:
            create_file(draft, content, mode)
            os.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        sync_file_names(path.parent)


def is_draft(path: Path, name: str) -> bool:
    """Whether `path` is a draft that was left behind when a process was killed while writing the file `name`."""
    return path.name.startswith(f".{name}.") and path.suffix == ".part"


def create_file(path: Path, content: str | bytes, mode: int = PUBLIC_MODE) -> None:
    """Write a new file; raise FileExistsError if it exists, even if another process has just created it."""
    # The mode is given here: a chmod afterwards would leave a moment in which others can open the file.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with _name_file_in_errors(path):
            _write_all(descriptor, _encode_if_text(content))
            os.fsync(descriptor)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def append_line(path: Path, line: str) -> None:
    """Append one line to the file, either completely or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PUBLIC_MODE)
    try:
        before = os.fstat(descriptor).st_size
        with _name_file_in_errors(path):
            try:
                _write_all(descriptor, _encode_if_text(f"{line}\n"))
                os.fsync(descriptor)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
    finally:
        os.close(descriptor)


def move_file(draft: Path, path: Path) -> None:
    """Rename a finished draft to the file's final path, replacing the file that was there."""
    _call_fsync(draft)
    os.replace(draft, path)
    sync_file_names(path.parent)


def move_folder(draft: Path, folder: Path) -> None:
    """Rename a finished folder to its final path, replacing the folder that was there."""
    sync_all_files(draft)
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
    sync_file_names(folder.parent)


def sync_all_files(folder: Path) -> None:
    """Force the contents and the names of all files in a folder and in its sub-folders to the disk.

    Call this before you write a file that marks the folder as complete.
    """
    for path in folder.iterdir():
        if path.is_dir():
            sync_all_files(path)
        else:
            _call_fsync(path)
    sync_file_names(folder)


def sync_file_names(folder: Path) -> None:
    """Force only the names of a folder's files to the disk; without this, a crash can lose a new file after `fsync`."""
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _call_fsync(folder)


@contextmanager
def _name_file_in_errors(path: Path) -> Iterator[None]:
    """Let system errors in the block name this file; otherwise they would name its draft, or no file at all."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        del error.filename2  # with None in it, the message would end with "-> None"
        raise


def _call_fsync(path: Path) -> None:
    """Call the system's `fsync`: force a file's content, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    # A full disk, or a limit on a file's size, first shows as a write of fewer bytes than were given.
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _encode_if_text(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def is_disk_full_error(error: BaseException) -> bool:
    """Whether the error says that the disk is full."""
    return isinstance(error, OSError) and error.errno in FULL


def is_disk_nearly_full(folder: Path) -> bool:
    """Whether the disk of this folder has less than 16 MiB free."""
    return shutil.disk_usage(folder).free < LEAST_FREE_BYTES
