"""The operator's commands when Flower's answer is not the one they hoped for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from three_sites import make_server

from fedlog.cli.main import main
from fedlog.errors import RunError
from fedlog.flower.folders.keys import create_site_key
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.ops import server as server_side
from fedlog.flower.ops.processes import Command

RUNNING = "hint: is `fedlog federate server` running?"


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    folder = make_server(ServerFolder(tmp_path / "server"))
    folder.write_config(ServerConfig(("127.0.0.1",), "127.0.0.1", 1))
    return folder


@pytest.fixture
def key(tmp_path: Path) -> Path:
    create_site_key(tmp_path / "site.key", tmp_path / "site.pub", "north")
    return tmp_path / "site.pub"


def test_without_a_running_server_status_says_so(server: ServerFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Against the real `flwr`, whose exit code is 0 all the same."""
    assert main(["federate", "status", str(server.path)]) == 1
    said = capsys.readouterr().err
    assert "expected nodes from `" in said
    assert "SuperLink connection 'federation' not found" in said
    assert RUNNING in said
    assert main(["federate", "status", str(server.path.parent / "nowhere")]) == 2


@pytest.mark.parametrize(
    "told",
    [
        '{"success": false, "error-message": "Connection to the SuperLink is unavailable."}',
        "[]",
        "not json",
        RunError("exit code 1"),
        KeyboardInterrupt(),
    ],
)
def test_a_key_is_on_the_list_only_after_it_was_registered(
    server: ServerFolder,
    key: Path,
    told: str | BaseException,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[str] = []

    def called(command: Command) -> str:
        seen.extend(path.suffix for path in server.sites.iterdir())
        assert Path(command.arguments[3]).read_text() == key.read_text()
        if isinstance(told, BaseException):
            raise told
        return told

    monkeypatch.setattr(server_side, "call", called)
    arguments = ["federate", "register", str(server.path), str(key), "--name", "north"]
    if isinstance(told, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            server_side.register(server, "north", key.read_text(), print)
    else:
        assert main(arguments) == 1
        assert RUNNING in capsys.readouterr().err
    assert ".pub" not in seen
    assert list(server.sites.iterdir()) == []
    assert server.read_known_sites() == {}
    monkeypatch.setattr(server_side, "call", lambda command: json.dumps({"success": True, "node-id": "12"}))
    assert main(arguments) == 0
    assert server.read_known_sites() == {"north": "12"}
    assert (server.sites / "north.pub").read_text() == key.read_text()


def test_a_site_stays_on_the_list_while_its_key_was_not_taken_off(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.remember_site("north", "12", "a key")
    monkeypatch.setattr(server_side, "call", lambda command: '{"success": false, "error-message": "no"}')
    assert main(["federate", "unregister", str(server.path), "north"]) == 1
    assert RUNNING in capsys.readouterr().err
    assert server.read_known_sites() == {"north": "12"}
