"""Metrics and status page of a server and a site: scraped over HTTP, read by Prometheus' parser, seen by a browser."""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import pytest
from browser import visit
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from three_sites import BODIES, SCHEMA, InProcess, fill_site, make_server, quick_clock

from fedlog.errors import InputError
from fedlog.flower.folders.folder import LineFollower, log_event
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.ops.processes import find_free_port
from fedlog.flower.ops.status import render_server_metrics, render_server_page, render_site_metrics, render_site_page
from fedlog.flower.ops.status_server import parse_status_address, serve_status
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.server.callers import Presence, RegisteredKeys
from fedlog.flower.server.gate import CallCounts, Gate
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules
from fedlog.settings.promise import Promise

PRIVATE = Promise("client", "central", 20.0, 1e-5, message_norm=20.0)


@pytest.fixture(autouse=True)
def _inside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def post(tmp_path: Path) -> InProcess:
    return InProcess({name: fill_site(SiteFolder(tmp_path / name), name, "mlp:8") for name in BODIES})


@pytest.fixture
def server(tmp_path: Path, post: InProcess) -> ServerFolder:
    """A server with a plain and a private run behind it, of which `south` missed the second."""
    folder = make_server(ServerFolder(tmp_path / "server"))
    for at, name in enumerate(BODIES, start=10):
        folder.add_registered_site(name, str(at), "a key")
    options = {"epochs": 1, "learning_rate": 0.01}
    for plan in (
        Plan("plain", rounds=3, options=options),
        Plan("private", rounds=2, options=options, promise=PRIVATE),
    ):
        going = Run(post, folder, SCHEMA, plan, RoundRules(2, 20.0), quick_clock())
        going._gather_sites()
        post.silent = {"south"} if plan.promise is not None else set()
        going.conduct()
    presence = Presence()
    gate = Gate(
        "", httpx.AsyncClient(), RegisteredKeys(tmp_path), 1, folder.traffic_file, presence, folder.presence_file
    )
    gate.calls["pull-messages"] = CallCounts(7, 700, 800)
    presence.refusals["the clock is off"] = 4
    presence.connected = {"east", "north"}
    gate._write_status_files()
    folder.log("news", site="north", news="<b>bold</b>")
    return folder


def scrape(url: str) -> dict[tuple[str, ...], float]:
    """Name and label values -> figure."""
    with urllib.request.urlopen(f"{url}metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("counter", "gauge")
        for sample in family.samples:
            found[(sample.name, *(value for _, value in sorted(sample.labels.items())))] = sample.value
    return found


def test_a_scrape_of_the_server_counts_rounds_bytes_sites_refusals_and_privacy(server: ServerFolder) -> None:
    with serve_status("0", lambda: render_server_metrics(server), lambda: "") as url:
        assert url.startswith("http://127.0.0.1:")
        found = scrape(url)
        assert found[("fedlog_rounds_total", "plain")] == 3
        assert found[("fedlog_rounds_total", "private")] == 2
        log_event(server.event_log, "round", run="plain", round=4, of=9, seconds=2.5, bits_up=1, bits_down=2)
        assert scrape(url)[("fedlog_rounds_total", "plain")] == 4  # it is read anew each time
    assert found[("fedlog_sites_connected",)] == 2
    assert found[("fedlog_sites_registered",)] == 3
    assert [found[("fedlog_site_connected", site)] for site in sorted(BODIES)] == [1, 1, 0]
    assert found[("fedlog_gate_bytes_total", "pull-messages", "up")] == 700
    assert found[("fedlog_gate_calls_total", "pull-messages")] == 7
    assert found[("fedlog_gate_refusals_total", "the clock is off")] == 4
    assert found[("fedlog_payload_bits_total", "down", "plain")] > 0
    assert found[("fedlog_site_missing", "private", "south")] == 1
    assert found[("fedlog_site_missing", "plain", "south")] == 0
    assert 0 < found[("fedlog_privacy_epsilon", "private")] <= 20
    assert ("fedlog_privacy_epsilon", "plain") not in found
    assert found[("fedlog_run_ended", "plain")] == 1
    assert found[("fedlog_round_seconds_total", "plain")] >= found[("fedlog_last_round_seconds", "plain")] >= 0


def test_a_scrape_of_a_site_holds_no_figure_about_its_rows(server: ServerFolder, post: InProcess) -> None:
    east = post.sites["east"]
    log_event(east.event_log, "connected")
    log_event(east.event_log, "starting again", reason="killed", seconds=1.0)
    log_event(east.event_log, "connected")
    with serve_status("127.0.0.1:0", lambda: render_site_metrics(east), lambda: "") as url:
        found = scrape(url)
    assert found[("fedlog_site_rounds_total", "plain")] == 3
    assert found[("fedlog_site_sent_bits_total", "plain")] > 0
    assert found[("fedlog_site_work_seconds_total", "plain")] > 0
    assert found[("fedlog_site_connected",)] == 1
    assert found[("fedlog_site_restarts_total",)] == 1
    assert found[("fedlog_site_privacy_epsilon",)] == math.inf  # exact statistics left in the plain run
    assert not any("accuracy" in name[0] for name in found)


def test_the_page_of_the_server_is_readable_in_a_browser(server: ServerFolder, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    with serve_status("0", lambda: b"", lambda: render_server_page(server)) as url:
        seen = visit(url, tmp_path / "profile", picture)
    assert seen.complaints == []
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", seen.dom, flags=re.S)
    assert "private: round 2 of 2; finished" in text
    for words in (
        "east",
        "connected",
        "not connected",
        "missed the deadline of round 1",
        "taking part: east, north, south",
    ):
        assert words in text
    assert "<b>bold</b>" not in seen.dom  # what others say stays text
    assert "&lt;b&gt;bold" in seen.dom
    assert seen.dom.count("<polyline") == 1
    pixels = Image.open(picture).convert("RGB")
    assert len(pixels.getcolors(2**24) or []) > 20  # something is drawn


def test_the_page_of_a_site_shows_its_curve_and_what_left(
    server: ServerFolder, post: InProcess, tmp_path: Path
) -> None:
    east = post.sites["east"]
    with serve_status("0", lambda: b"", lambda: render_site_page(east)) as url:
        seen = visit(url, tmp_path / "profile")
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", seen.dom, flags=re.S)
    assert seen.complaints == []
    assert "private: round 2 of 2" in text
    assert "no guarantee: exact statistics of these rows left in plain" in text
    assert "Validation accuracy" in text
    assert seen.dom.count("<polyline") == 1


def test_an_empty_server_has_a_page_and_metrics_too(tmp_path: Path) -> None:
    folder = make_server(ServerFolder(tmp_path / "server"))
    assert "no run yet" in render_server_page(folder)
    assert b"fedlog_sites_registered 0.0" in render_server_metrics(folder)


def test_only_this_machine_is_answered_unless_the_operator_opens_the_address() -> None:
    pages = (lambda: b"m"), (lambda: "p")
    with serve_status("0", *pages) as url:
        foreign = urllib.request.Request(f"{url}metrics", headers={"Host": "evil.example:80"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(foreign)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}other")
        port = url.rsplit(":", 1)[1].strip("/")
        with pytest.raises(InputError, match="cannot listen"), serve_status(port, *pages):
            pass
    with serve_status(f"0.0.0.0:{find_free_port()}", *pages) as url:
        opened = urllib.request.Request(f"{url}metrics", headers={"Host": "fed.example.org:9464"})
        with urllib.request.urlopen(opened) as answer:
            assert answer.read() == b"m"
    assert parse_status_address("9464") == ("127.0.0.1", 9464)
    for wrong in ("", "x", "host:", "1:99999"):
        with pytest.raises(InputError):
            parse_status_address(wrong)


def test_a_log_that_was_rotated_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log_event(path, "first", round=1)
    follower = LineFollower.from_end(path)
    path.write_text("")  # as logrotate's copytruncate does
    log_event(path, "next")
    assert [event["event"] for event in follower.read_new_events()] == ["next"]
    assert json.loads(path.read_text())["event"] == "next"
