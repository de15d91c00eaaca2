"""Download data sets: downloads can be resumed, are verified, and only expected files are taken from archives.

A download is written to NAME.part, and an interrupted one is continued there the next time. Only after pooch has
verified it is the file renamed to NAME.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

import pooch
import requests

from fedlog.data.public_data_sets import Download, PublicDataSet, find_file_state
from fedlog.errors import InputError, RunError
from fedlog.files.durable import move_file, write_file

# Called with (bytes so far, bytes in all or None if the server does not say).
ReportProgress = Callable[[int, int | None], None]

CHUNK_BYTES = 1 << 16
TIMEOUT_SECONDS = 30.0
# A limit on files in archives, so that an archive without a published checksum cannot fill the disk.
MEMBER_LIMIT = 256 << 20
ARCHIVE_ERRORS = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    KeyError,
    NotImplementedError,
)


@dataclass(frozen=True)
class ResumableDownloader:
    """A downloader for pooch that keeps the bytes received so far in `part` and asks the server for the rest."""

    part: Path
    report: ReportProgress

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        """Download the file at `url` to `output_file`; `pooch.retrieve` calls this."""
        self.part.parent.mkdir(parents=True, exist_ok=True)
        while not self._receive(url):
            self.part.unlink()  # the server cannot continue from here, so the bytes received are useless
        move_file(self.part, Path(output_file))

    def _receive(self, url: str) -> bool:
        """Receive the rest of the file; return False if the server cannot continue after the bytes in `part`."""
        done = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"}
        if done:
            headers["Range"] = f"bytes={done}-"
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable and done:
                return bool(response.headers.get("Content-Range", "") == f"bytes */{done}")  # it was complete
            response.raise_for_status()
            resumed = response.status_code == requests.codes.partial_content
            if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
                return False
            done = done if resumed else 0
            length = response.headers.get("Content-Length")
            total = None if length is None else done + int(length)
            with self.part.open("ab" if resumed else "wb") as stream:
                for chunk in response.iter_content(CHUNK_BYTES):
                    stream.write(chunk)
                    done += len(chunk)
                    self.report(done, total)
        if total is not None and done != total:
            raise requests.exceptions.ConnectionError(f"expected {total} bytes, received {done}")
        return True


def fetch_data_set(data_set: PublicDataSet, folder: Path, report: Callable[[str], ReportProgress]) -> tuple[Path, ...]:
    """Download the files of the data set that are missing or corrupt, and return the paths of all its files.

    `report(name)` is called once for each download; the function it returns is called with the progress.
    """
    for download in data_set.downloads:
        if all(find_file_state(file, folder).usable for file in download.files):
            continue
        if download.archive == "none":
            _download_file(download, folder / download.files[0].path, report(download.name))
            continue
        archive = folder / "downloads" / download.name
        _download_file(download, archive, report(download.name))
        try:
            _unpack_archive(download, archive, folder)
        except RunError:  # the archive is wrong; if only the folder is not writable, it is kept
            archive.unlink()
            raise
        archive.unlink()
    return tuple(folder / file.path for file in data_set.files)


def _download_file(download: Download, target: Path, report: ReportProgress) -> None:
    pooch.get_logger().setLevel("WARNING")  # the progress bar already says what happens
    part = target.with_name(target.name + ".part")
    known_hash = None if download.sha256 is None else f"sha256:{download.sha256}"
    try:
        pooch.retrieve(
            download.url,
            known_hash,
            fname=target.name,
            path=target.parent,
            downloader=ResumableDownloader(part, report),
        )
    except requests.exceptions.RequestException as error:
        arrived = part.stat().st_size if part.exists() else 0
        raise RunError(
            f"{download.url}: download failed after {arrived} bytes: {error}",
            hint="run the same command again: it continues where it stopped",
        ) from error
    except ValueError as error:  # pooch raises it if the checksum differs
        raise RunError(
            f"{download.url}: the downloaded file is not the expected one; its sha256 must be: {download.sha256}",
            hint="run the same command again; if it persists, the file at that address has changed",
        ) from error
    except OSError as error:
        raise _make_not_writable_error(target, error) from error


def _make_not_writable_error(target: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write to {error.filename or target}: {error.strerror or error}",
        hint="make room, or choose another folder with --data-dir",
    )


def _unpack_archive(download: Download, archive: Path, folder: Path) -> None:
    try:
        with _open_archive(download, archive) as open_member:
            for file in download.files:
                with open_member(file.path) as member:
                    content = _read_member(member, f"{download.url}: {file.path}")
                if file.sha256 is not None and hashlib.sha256(content).hexdigest() != file.sha256:
                    raise RunError(
                        f"{download.url}: {file.path} is not the expected file; its sha256 must be: {file.sha256}",
                        hint="run the same command again; if it persists, the archive at that address has changed",
                    )
                write_file(folder / file.path, content)
    except ARCHIVE_ERRORS as error:
        raise RunError(
            f"{download.url}: the downloaded archive cannot be read: {error}", hint="run the same command again"
        ) from error
    except OSError as error:
        raise _make_not_writable_error(folder, error) from error


@contextmanager
def _open_archive(download: Download, archive: Path) -> Iterator[Callable[[str], IO[bytes]]]:
    """Open an archive; yield a function that opens the member with a given name."""
    if download.archive == "tar.gz":
        with tarfile.open(archive, "r:gz") as tar:
            yield lambda name: _open_tar_member(tar, name)
        return
    with zipfile.ZipFile(archive) as outer:
        if download.inner_zip is None:
            yield outer.open
            return
        with outer.open(download.inner_zip) as stream:
            content = _read_member(stream, f"{download.url}: {download.inner_zip}")
        with zipfile.ZipFile(BytesIO(content)) as inner:
            yield inner.open


def _open_tar_member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    member = tar.extractfile(name)  # KeyError if there is no such member
    if member is None:
        raise tarfile.TarError(f"expected a regular file, found a folder or a link: {name}")
    return member


def _read_member(stream: IO[bytes], where: str) -> bytes:
    """Read a file inside an archive; RunError if it has more than MEMBER_LIMIT bytes."""
    content = stream.read(MEMBER_LIMIT + 1)
    if len(content) > MEMBER_LIMIT:
        raise RunError(
            f"{where} is too large: more than {MEMBER_LIMIT} bytes",
            hint="run the same command again; if it persists, the archive at that address has changed",
        )
    return content
