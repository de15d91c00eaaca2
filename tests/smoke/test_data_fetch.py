"""Downloads from a real HTTP server on the loopback interface: whole, interrupted, corrupt, and in archives."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedlog.cli import data as cli
from fedlog.data.catalog import DEFAULTS
from fedlog.data.fetch import fetch_data_set
from fedlog.data.public_data_sets import DataFile, Download, PublicDataSet
from fedlog.errors import InputError, RunError

CONTENT = bytes(range(256)) * 2000  # 512 kB: several chunks


@dataclass
class Served:
    """The files that the server offers, and the requests it got."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: dict[str, int] = field(default_factory=dict)  # the next answer breaks off after so many bytes
    knows_ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range header


@pytest.fixture
def server() -> Iterator[Served]:
    served = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            served.asked.append((self.path, asked))
            content = served.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and served.knows_ranges else 0
            if start >= len(content) and start:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start : start + served.cut_after.pop(self.path, len(content))])
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        served.url = f"http://127.0.0.1:{httpd.server_address[1]}"
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield served
        httpd.shutdown()
        thread.join()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def silent(name: str) -> object:
    return lambda done, total: None


def data_set_of(*downloads: Download) -> PublicDataSet:
    return PublicDataSet("toy", "Toy", "https://example.org", "none", "nobody", downloads)


def plain(server: Served, content: bytes = CONTENT) -> PublicDataSet:
    """A data set of one file, with the checksum of this content."""
    name, checksum = "toy.gz", sha256(content)
    return data_set_of(Download(f"{server.url}/{name}", name, checksum, (DataFile(f"TOY/raw/{name}", checksum),)))


def tar_gz(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_a_file_is_downloaded_verified_and_named(server: Served, tmp_path: Path) -> None:
    server.files["/toy.gz"] = CONTENT
    seen: list[tuple[int, int | None]] = []
    paths = fetch_data_set(plain(server), tmp_path, lambda name: lambda done, total: seen.append((done, total)))
    assert paths == (tmp_path / "TOY/raw/toy.gz",)
    assert paths[0].read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [path.name for path in paths[0].parent.iterdir()] == ["toy.gz"]


def test_what_is_here_and_right_is_not_asked_for_again(server: Served, tmp_path: Path) -> None:
    server.files["/toy.gz"] = CONTENT
    fetch_data_set(plain(server), tmp_path, silent)
    fetch_data_set(plain(server), tmp_path, silent)
    assert len(server.asked) == 1


def test_an_interrupted_download_goes_on_where_it_stopped(server: Served, tmp_path: Path) -> None:
    server.files["/toy.gz"], server.cut_after["/toy.gz"] = CONTENT, 200_000
    target = tmp_path / "TOY/raw/toy.gz"
    with pytest.raises(RunError, match="download failed after") as failure:
        fetch_data_set(plain(server), tmp_path, silent)
    assert "again" in str(failure.value.hint)
    assert not target.exists()
    arrived = target.with_name("toy.gz.part").stat().st_size
    assert 0 < arrived <= 200_000
    seen: list[int] = []
    fetch_data_set(plain(server), tmp_path, lambda name: lambda done, total: seen.append(done))
    assert server.asked[-1] == ("/toy.gz", f"bytes={arrived}-")
    assert seen[0] > arrived
    assert target.read_bytes() == CONTENT
    assert not target.with_name("toy.gz.part").exists()


@pytest.mark.parametrize("already", [CONTENT, CONTENT[:1000], CONTENT + b"more", b"x" * (len(CONTENT) + 1)])
@pytest.mark.parametrize("knows_ranges", [True, False])
def test_whatever_part_is_here_the_file_comes_out_right(
    server: Served, tmp_path: Path, already: bytes, knows_ranges: bool
) -> None:
    server.files["/toy.gz"], server.knows_ranges = CONTENT, knows_ranges
    part = tmp_path / "TOY/raw/toy.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(already)
    (target,) = fetch_data_set(plain(server), tmp_path, silent)
    assert target.read_bytes() == CONTENT


def test_a_corrupt_download_is_refused_and_leaves_nothing(server: Served, tmp_path: Path) -> None:
    server.files["/toy.gz"] = b"wrong" + CONTENT
    with pytest.raises(RunError, match="the downloaded file is not the expected one"):
        fetch_data_set(plain(server), tmp_path, silent)
    assert list((tmp_path / "TOY/raw").iterdir()) == []


def test_a_corrupt_file_on_disk_is_replaced(server: Served, tmp_path: Path) -> None:
    server.files["/toy.gz"] = CONTENT
    target = tmp_path / "TOY/raw/toy.gz"
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1])
    fetch_data_set(plain(server), tmp_path, silent)
    assert target.read_bytes() == CONTENT


def test_a_missing_address_is_named(server: Served, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"/toy\.gz: download failed .* 404"):
        fetch_data_set(plain(server), tmp_path, silent)


def test_a_tar_archive_gives_its_expected_members_and_nothing_else(server: Served, tmp_path: Path) -> None:
    evil = {"../escape.bin": b"evil", "/abs.bin": b"evil", "toy/other.bin": b"unasked"}
    archive = tar_gz({**evil, "toy/a.bin": b"first", "toy/b.bin": b"second"})
    server.files["/toy.tar.gz"] = archive
    files = (DataFile("toy/a.bin", sha256(b"first")), DataFile("toy/b.bin", sha256(b"second")))
    url = f"{server.url}/toy.tar.gz"
    folder = tmp_path / "inner"
    fetch_data_set(data_set_of(Download(url, "toy.tar.gz", sha256(archive), files, "tar.gz")), folder, silent)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["inner/toy/a.bin", "inner/toy/b.bin"]
    assert (folder / "toy/b.bin").read_bytes() == b"second"


@pytest.mark.parametrize(
    ("archive", "says"),
    [
        (tar_gz({"toy/a.bin": b"changed"}), "its sha256 must be"),
        (tar_gz({"toy/other.bin": b"first"}), "archive cannot be read"),
        (tar_gz({}, links={"toy/a.bin": "/etc/passwd"}), "archive cannot be read"),
        (tar_gz({"toy/a.bin": b"first"})[:40], "archive cannot be read"),
        (b"not an archive", "archive cannot be read"),
    ],
    # An archive holds the time it was made at, so its bytes cannot name the case.
    ids=["changed", "another member", "a link", "cut off", "no archive"],
)
def test_an_archive_with_other_content_is_refused(server: Served, tmp_path: Path, archive: bytes, says: str) -> None:
    server.files["/toy.tar.gz"] = archive
    files = (DataFile("toy/a.bin", sha256(b"first")),)
    with pytest.raises(RunError, match=says):
        fetch_data_set(
            data_set_of(Download(f"{server.url}/toy.tar.gz", "toy.tar.gz", None, files, "tar.gz")), tmp_path, silent
        )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_cannot_be_unpacked_into_is_named_and_the_archive_kept(server: Served, tmp_path: Path) -> None:
    server.files["/toy.tar.gz"] = tar_gz({"toy/a.bin": b"first"})
    data_set = data_set_of(
        Download(f"{server.url}/toy.tar.gz", "toy.tar.gz", None, (DataFile("toy/a.bin", None),), "tar.gz")
    )
    (tmp_path / "toy").touch()
    with pytest.raises(InputError, match=f"cannot write to {tmp_path / 'toy'}: "):
        fetch_data_set(data_set, tmp_path, silent)
    (tmp_path / "toy").unlink()
    server.files.clear()  # what has arrived is enough
    assert fetch_data_set(data_set, tmp_path, silent)[0].read_bytes() == b"first"


def test_a_folder_that_cannot_be_written_is_named(server: Served, tmp_path: Path) -> None:
    server.files["/toy.gz"] = CONTENT
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write to"):
        fetch_data_set(plain(server), tmp_path / "file" / "below", silent)


def test_a_zip_inside_a_zip_is_unpacked_without_a_checksum(server: Served, tmp_path: Path) -> None:
    inner = zipped({"Toy Set/train/y.txt": b"1\n2\n", "Toy Set/unasked.txt": b"x"})
    server.files["/toy.zip"] = zipped({"Toy Set.zip": inner, "Toy Set.names": b"about"})
    files = (DataFile("Toy Set/train/y.txt", None),)
    data_set = data_set_of(Download(f"{server.url}/toy.zip", "toy.zip", None, files, "zip", inner_zip="Toy Set.zip"))
    (path,) = fetch_data_set(data_set, tmp_path, silent)
    assert path.read_bytes() == b"1\n2\n"
    assert [found.name for found in tmp_path.rglob("*") if found.is_file()] == ["y.txt"]


def test_a_truncated_zip_is_refused(server: Served, tmp_path: Path) -> None:
    server.files["/toy.zip"] = zipped({"y.txt": b"1\n2\n"})[:-10]
    data_set = data_set_of(Download(f"{server.url}/toy.zip", "toy.zip", None, (DataFile("y.txt", None),), "zip"))
    with pytest.raises(RunError, match="archive cannot be read"):
        fetch_data_set(data_set, tmp_path, silent)
    assert not (tmp_path / "y.txt").exists()


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    args = parser.parse_args(arguments)
    code = args.handler(args) or 0
    assert isinstance(code, int)
    return code


def test_the_commands_fetch_check_and_list(
    server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/toy.gz"] = CONTENT
    monkeypatch.setenv("FEDLOG_DATA", str(tmp_path))
    monkeypatch.setitem(cli.PUBLIC_DATA_SETS, "toy", plain(server))

    assert run("check", "toy") == 2
    said = capsys.readouterr()
    assert "missing" in said.out
    assert "hint: fedlog data fetch toy" in said.err

    assert run("fetch", "toy") == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}\n"
    assert "downloaded and verified" in said.err

    assert run("check", "toy", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["files"] == [{"name": "toy", "file": "TOY/raw/toy.gz", "state": "verified"}]

    assert run("list", "--json") == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["data_sets"]}
    assert listed["toy"]["state"] == "fetched"
    assert listed["cifar10"]["state"] == "not fetched"
    assert {"digits", "circle", "leaf", "mnist", "cifar10", "cifar100", "har"} <= set(listed)

    (tmp_path / "TOY/raw/toy.gz").write_bytes(b"damaged")
    assert run("check", "toy") == 2
    assert "TOY/raw/toy.gz (corrupt)" in capsys.readouterr().err

    assert run("list") == 0
    assert "mnist" in capsys.readouterr().out


def test_the_list_has_every_data_set_that_a_run_takes() -> None:
    listed = {name for name, *_ in cli.NOT_DOWNLOADED} | set(cli.PUBLIC_DATA_SETS)
    assert listed == set(DEFAULTS) - {"mnist-selection"}  # which is for choosing settings
