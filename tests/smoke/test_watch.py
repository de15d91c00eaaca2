"""`fedlog watch`: it answers only on this machine and with the token, and its page follows a run in a browser."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from headless_browser import DESKTOP, PATIENCE, look_as, open_browser, press, read_console, read_part, visit, wait_for
from served_pages import serve

import fedlog
from fedlog.cli.main import main
from fedlog.engine.simulate.simulator import RoundRecord
from fedlog.experiments.run.callbacks import Callback
from fedlog.report.pages.live import ADDRESS, PageServer, hash_file_states, make_pages_of_runs

if TYPE_CHECKING:
    from tests.conftest import MakeFederation


@pytest.fixture(scope="module")
def runs(make_federation: MakeFederation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    for method in ("fedlog", "local"):
        fedlog.run(make_federation([20, 30]), method, rounds=2, epochs=1, body="mlp:4", out=folder / method)
    return folder


@pytest.fixture
def server(runs: Path) -> Iterator[PageServer]:
    with serve(make_pages_of_runs(runs)) as found:
        yield found


def _ask(server: PageServer, path: str, host: str | None = None) -> tuple[int, str]:
    link = http.client.HTTPConnection(ADDRESS, server.server_port, timeout=PATIENCE)
    link.request("GET", path, headers={} if host is None else {"Host": host})
    answer = link.getresponse()
    text = answer.read().decode()
    link.close()
    return answer.status, text


def _version_of(folder: Path) -> str:
    return hash_file_states(make_pages_of_runs(folder).list_files(folder))


def test_the_page_is_for_this_machine_and_whoever_has_the_token(server: PageServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.server_port != 0
    assert len(server.token) >= 32
    inside = f"/{server.token}/"
    assert _ask(server, inside)[0] == 200
    for path in ("/", "/version", f"/{server.token[:-1]}x/", f"/{server.token}", inside + "config.json"):
        assert _ask(server, path)[0] == 404, path
    for outside in ("../", "..%2f", "fedlog/../../", "/etc/", "fedlog/models/"):
        assert _ask(server, inside + outside)[0] == 404, outside
    # A page from elsewhere that gave this machine its own name (DNS rebinding) finds nothing.
    assert _ask(server, inside, host="evil.example")[0] == 404


def test_a_folder_lists_its_runs_and_each_run_has_its_page(server: PageServer) -> None:
    status, text = _ask(server, f"/{server.token}/")
    assert status == 200
    assert re.findall(r'<td><a href="([^"]+)"', text) == ["fedlog/", "local/"]
    status, text = _ask(server, f"/{server.token}/fedlog/")
    assert status == 200
    assert "training alone" in text  # beside it
    assert _ask(server, f"/{server.token}/fedlog/version") == (200, _version_of(server.pages.folder / "fedlog"))


def test_the_version_follows_the_records(runs: Path, server: PageServer) -> None:
    before = {folder: _version_of(folder) for folder in (runs, runs / "fedlog", runs / "local")}
    records = runs / "fedlog" / "records.jsonl"
    text = records.read_text()
    try:
        records.write_text(text.splitlines()[0] + "\n")
        assert _version_of(runs) != before[runs]
        assert _version_of(runs / "fedlog") != before[runs / "fedlog"]
        assert _version_of(runs / "local") == before[runs / "local"]
        assert "Not finished: round 1 of 2" in _ask(server, f"/{server.token}/fedlog/")[1]
    finally:
        records.write_text(text)


def test_ctrl_c_ends_it_quietly(runs: Path) -> None:
    command = [sys.executable, "-m", "fedlog", "watch", str(runs)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes) as watching:  # type: ignore[call-overload]
        assert watching.stdout is not None
        address = re.fullmatch(r"watching: http://127\.0\.0\.1:(\d+)/([\w-]{32,})/\n", watching.stdout.readline())
        assert address, watching.stderr.read()
        # A browser that holds its connection open does not keep the program alive.
        with socket.create_connection((ADDRESS, int(address[1])), timeout=PATIENCE):
            watching.send_signal(signal.SIGINT)
            out, err = watching.communicate(timeout=PATIENCE)
    assert (watching.returncode, out) == (0, "")
    assert err.endswith("stopped\n")
    assert "Traceback" not in err


def test_what_is_no_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "nowhere"]) == 2
    assert capsys.readouterr().err.startswith("error: expected a folder to watch, found none: nowhere\nhint: ")


class _Steps(Callback):
    """Holds a run after each round until it is told to go on."""

    def __init__(self) -> None:
        self.ended, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def round_ended(self, record: RoundRecord) -> None:
        self.ended.release()
        assert self.go_on.acquire(timeout=PATIENCE)


def test_in_a_browser_the_page_follows_a_run(make_federation: MakeFederation, tmp_path: Path) -> None:
    steps, out, data = _Steps(), tmp_path / "runs" / "live", make_federation([20, 30])
    settings = {"rounds": 3, "epochs": 1, "body": "mlp:4", "out": out, "callbacks": [steps], "progress": False}
    run = threading.Thread(target=lambda: fedlog.run(data, "fedlog", **settings))
    (tmp_path / "runs").mkdir()
    with serve(make_pages_of_runs(tmp_path / "runs")) as server, open_browser() as chrome:
        look_as(chrome, DESKTOP)
        visit(chrome, server.url)
        wait_for(chrome, "h1", "Runs in runs 0 runs")
        run.start()
        assert steps.ended.acquire(timeout=PATIENCE)
        wait_for(chrome, "main", "1 of 3, not finished")
        press(chrome, "main a[href='live/']")
        wait_for(chrome, "header", "Not finished: round 1 of 3")
        chrome.execute_script("window.unchanged = true")
        press(chrome, ".legend button")
        steps.go_on.release()
        wait_for(chrome, "header", "Not finished: round 2 of 3")
        # Without loading anew: what was switched off stays so.
        assert read_part(chrome, "body", "ownerDocument.defaultView.unchanged")
        assert read_part(chrome, ".legend button", "ariaPressed") == "false"
        assert not read_part(chrome, "#figure-accuracy-by-round [data-key=fedlog]", "getClientRects().length")
        press(chrome, ".legend button")
        assert read_part(chrome, "#figure-accuracy-by-round .line", "getClientRects().length")
        steps.go_on.release(2)
        run.join(PATIENCE)
        wait_for(chrome, "main", "Class means of the clients")
        assert "Not finished" not in read_part(chrome, "header")
        assert read_part(chrome, ".live") == "live"
        assert read_console(chrome) == []
    assert not run.is_alive()
