"""A private run leaves nothing that sites sent in Flower's database."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from loopback_sites import Federation
from three_sites import BODIES

from fedlog.cli.main import main
from fedlog.flower.folders import server_folder
from fedlog.flower.folders.folder import read_events
from fedlog.flower.folders.server_folder import erase_deleted_messages
from fedlog.flower.protocol.frame import MAGIC, FrameKind

SENT = 40 * b"what a site sent;"


def files_with(content: bytes, folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and content in path.read_bytes()]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A database as Flower keeps it, without an object that it has deleted."""
    path = tmp_path / "superlink.db"
    with closing(_connected(path)) as flower:
        flower.execute("CREATE TABLE objects (name TEXT, content BLOB)")
        flower.executemany("INSERT INTO objects VALUES (?, ?)", [("kept", b"registered"), ("upload", SENT)])
        flower.execute("DELETE FROM objects WHERE name = 'upload'")
    return path


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=0.1)
    connection.execute("PRAGMA journal_mode = WAL")
    return connection


def test_what_was_deleted_is_in_no_file_afterwards_also_while_flower_runs(written: Path) -> None:
    assert erase_deleted_messages(written.with_name("none.db")) is None
    with closing(_connected(written)) as flower:
        flower.execute("INSERT INTO objects VALUES ('upload', ?)", [SENT])
        flower.execute("DELETE FROM objects WHERE name = 'upload'")
        assert files_with(SENT, written.parent)
        assert erase_deleted_messages(written) is None
        assert files_with(SENT, written.parent) == []
        flower.execute("INSERT INTO objects VALUES ('later', x'00')")
        assert flower.execute("SELECT name FROM objects ORDER BY name").fetchall() == [("kept",), ("later",)]


def test_a_database_that_is_in_use_is_left_alone_and_said(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_folder, "PATIENCE_SECONDS", 0.05)
    with closing(_connected(written)) as flower:
        flower.execute("BEGIN IMMEDIATE")
        assert "locked" in str(erase_deleted_messages(written))
        flower.execute("COMMIT")
        flower.execute("BEGIN")
        flower.execute("SELECT * FROM objects").fetchone()
        assert "in use" in str(erase_deleted_messages(written))
    assert erase_deleted_messages(written) is None


@pytest.mark.slow
def test_a_run_with_central_noise_leaves_no_upload_on_the_servers_disk(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    uploads = bytes(MAGIC) + bytes([1, FrameKind.UPLOAD])
    with federation.stack:
        federation.start_server()
        federation.admit(*BODIES)
        settings = ["--rounds", "2", "--set", "epochs=1", "--minimum-sites", "3", "--deadline", "200"]
        open_run = ["federate", "run", str(federation.server.path), "--name", "open", *settings]
        assert main(open_run) == 0
        assert files_with(uploads, federation.server.path)  # or this test would look for the wrong bytes
        promise = ["--privacy", "client", "--message-norm", "20", "--epsilon", "20", "--delta", "1e-5"]
        assert main([*open_run, "--name", "private", *promise]) == 0
        end = time.monotonic() + 60  # the command ends with the run's last event, and the app just after it
        while files_with(uploads, federation.server.path) and time.monotonic() < end:
            time.sleep(0.5)
        assert files_with(uploads, federation.server.path) == []
        assert not [e for e in read_events(federation.server.event_log) if e["event"] == "not packed"]
