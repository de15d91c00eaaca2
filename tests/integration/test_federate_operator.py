"""The operator's commands if Flower refuses or is not running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from three_sites import fill_site, make_server

from fedlog.cli.main import main
from fedlog.errors import RunError
from fedlog.flower.folders.keys import create_site_key
from fedlog.flower.folders.server_folder import ServerConfig, ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops import run as runs
from fedlog.flower.ops import server as server_side
from fedlog.flower.ops.processes import Command
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.run_folder import RoundRules, RunFolder

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
    """With the real `flwr`, which exits with code 0 in this case too."""
    assert main(["federate", "status", str(server.path)]) == 1
    said = capsys.readouterr().err
    assert "expected an entry nodes in the output of `" in said
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

    monkeypatch.setattr(server_side, "run_command", called)
    arguments = ["federate", "register", str(server.path), str(key), "--name", "north"]
    if isinstance(told, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            server_side.register_site(server, "north", key.read_text(), print)
    else:
        assert main(arguments) == 1
        assert RUNNING in capsys.readouterr().err
    assert ".pub" not in seen
    assert list(server.sites.iterdir()) == []
    assert server.read_registered_sites() == {}
    monkeypatch.setattr(server_side, "run_command", lambda command: json.dumps({"success": True, "node-id": "12"}))
    assert main(arguments) == 0
    assert server.read_registered_sites() == {"north": "12"}
    assert (server.sites / "north.pub").read_text() == key.read_text()


def test_a_site_stays_on_the_list_while_its_key_was_not_taken_off(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add_registered_site("north", "12", "a key")
    monkeypatch.setattr(server_side, "run_command", lambda command: '{"success": false, "error-message": "no"}')
    assert main(["federate", "unregister", str(server.path), "north"]) == 1
    assert RUNNING in capsys.readouterr().err
    assert server.read_registered_sites() == {"north": "12"}


def test_a_key_that_was_taken_off_the_list_gets_a_fitting_hint(
    server: ServerFolder, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Flower's words are those of its 1.41.0; `tests/smoke/test_federate_membership.py` hears them from Flower."""
    refusal = json.dumps({"success": False, "error-message": "Public key already in use."})
    monkeypatch.setattr(server_side, "run_command", lambda command: refusal)
    assert main(["federate", "register", str(server.path), str(key), "--name", "north"]) == 2
    said = capsys.readouterr().err
    assert "expected a new key for north, found one that was registered before" in said
    assert "fedlog federate rekey" in said
    assert RUNNING not in said
    server.add_registered_site("south", "12", key.read_text())
    assert main(["federate", "register", str(server.path), str(key), "--name", "north"]) == 2
    assert "registered as: south" in capsys.readouterr().err


def test_a_folder_of_keys_is_registered_as_a_whole_or_not_begun(
    server: ServerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    names = [f"site-{number}" for number in range(6)]
    for name in names:
        create_site_key(tmp_path / f"{name}.key", keys / f"{name}.pub", name)
    called: list[str] = []

    def register(command: Command) -> str:
        name = command.arguments[command.arguments.index("--name") + 1]
        called.append(name)
        if name == "site-3" and called.count(name) == 1:
            return json.dumps({"success": False, "error-message": "busy"})
        return json.dumps({"success": True, "node-id": name[-1]})

    monkeypatch.setattr(server_side, "run_command", register)
    arguments = ["federate", "register", str(server.path), str(keys)]
    (keys / "twice.pub").write_text((keys / "site-1.pub").read_text())
    assert main(arguments) == 2
    assert "the same key at: site-1, twice" in capsys.readouterr().err
    (keys / "twice.pub").write_text("no key")
    assert main(arguments) == 2
    assert called == []  # a bad file among them: nobody was registered
    (keys / "twice.pub").unlink()
    assert main([*arguments, "--name", "north"]) == 2
    assert main(arguments) == 1
    assert "1 of 6 keys were not registered (site-3); error for site-3" in capsys.readouterr().err
    rest = tmp_path / "rest"
    rest.mkdir()
    (keys / "site-3.pub").rename(rest / "site-3.pub")
    assert main([*arguments[:-1], str(rest)]) == 0
    assert server.read_registered_sites() == {name: name[-1] for name in names}
    assert main(["federate", "register", str(server.path), str(tmp_path / "site-1.key")]) == 2  # no name


def test_a_choice_that_fails_is_not_remembered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fill_site(SiteFolder(tmp_path / "north"), "north", "mlp:8")
    before = folder.config_file.read_text()
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n")
    site = ["federate", "site", str(folder.path)]
    for more in (["--data", str(wrong)], ["--body", "nothing"], ["--hold-out", "2"], ["--data", "no-such.csv"]):
        assert main([*site, *more, "--require-privacy", "local:8:1e-5"]) == 2
        assert folder.config_file.read_text() == before
    assert main([*site, "--require-privacy", "nothing"]) == 2
    assert folder.config_file.read_text() == before
    assert "hint" in capsys.readouterr().err


def test_a_run_continues_with_the_settings_it_began_with(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the hints and the pages say: `run --name run-1`, whatever the settings of that run were."""
    conducted: list[tuple[Plan, RoundRules]] = []

    def conduct(folder: ServerFolder, plan: Plan, rules: RoundRules, say: object) -> None:
        RunFolder.of_run(folder, plan.name).store_plan(plan)
        conducted.append((plan, rules))
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "run_federation", conduct)
    command = ["federate", "run", str(server.path), "--name", "run-1"]
    for arguments in (["--rounds", "3", "--seed", "7"], ["--deadline", "9", "--refused-share", "0.1"], []):
        main([*command, *arguments])
    main(command[:3])  # run-1 is not finished
    assert [plan.rounds for plan, _ in conducted] == [3] * 4
    assert all(plan == conducted[0][0] for plan, _ in conducted)
    assert conducted[1][1] == RoundRules(2, 9.0, 0.1)
    capsys.readouterr()
    assert main([*command, "--rounds", "4"]) == 2
    said = capsys.readouterr().err
    assert "run run-1 began, found other values: rounds 4 instead of 3, seed 0 instead of 7" in said
    assert "give --name run-1 and no setting" in said
    main([*command[:3], "--name", "run-2"])
    assert conducted[-1][0].rounds == 10


def test_a_second_command_for_one_folder_is_refused_and_changes_nothing(
    server: ServerFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would end the programs of the first command, which would start them again, and so on."""
    site = fill_site(SiteFolder(tmp_path / "north"), "north", "mlp:8")
    before = site.read_config()
    with site.lock_against_other_commands(), server.lock_against_other_commands():
        assert main(["federate", "site", str(site.path), "--body", "mlp:16,8"]) == 2
        assert main(["federate", "server", str(server.path)]) == 2
    said = capsys.readouterr().err
    assert [said.count(f"runs this server or site already: {folder.path}") for folder in (site, server)] == [1, 1]
    assert site.read_config() == before
    with site.lock_against_other_commands():  # it was released
        pass
