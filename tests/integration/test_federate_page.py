"""The page of a deployed run, in a real browser: it shows what the server knows, and nothing else."""

from __future__ import annotations

import csv
import json
import os
import shlex
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity
from headless_browser import (
    AUDIT,
    DESKTOP,
    PATIENCE,
    PHONE,
    look_as,
    open_browser,
    press,
    read_console,
    read_part,
    visit,
    wait_for,
)
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from served_pages import serve
from three_sites import BODIES, SCHEMA, InProcess, fill_site, make_server, quick_clock

from fedlog.cli.deployed_run import read_deployed_run
from fedlog.cli.main import main, parse_arguments
from fedlog.cli.watch import find_pages
from fedlog.flower.folders.server_folder import ServerFolder
from fedlog.flower.folders.site_folder import SiteFolder
from fedlog.flower.protocol.plan import Plan, make_plan
from fedlog.flower.server.rounds import Run
from fedlog.flower.server.run_folder import RoundRules, RunFolder
from fedlog.report.pages.live import hash_file_states
from fedlog.settings.flags import read_given_settings
from fedlog.settings.presets import apply_recipe
from fedlog.settings.promise import Promise
from fedlog.settings.spec import RunSpec
from fedlog.wire.bits_text import describe_bits

OPTIONS = {"epochs": 2, "learning_rate": 0.01}
OPEN = Plan("open", rounds=3, options=OPTIONS, seed=4, codec="rows+f16")
PRIVATE = Plan(
    "private", rounds=2, options=OPTIONS, seed=4, promise=Promise("client", "central", 20.0, 1e-5, message_norm=20.0)
)


@pytest.fixture(scope="module", autouse=True)
def _identity() -> Iterator[None]:
    """Numbers that a Flower process would give: here is none."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_run_id", "_node_id", "_task_id"):
            patch.setattr(TaskIdentity, name, 1)
        yield


def make_folders(root: Path) -> tuple[dict[str, SiteFolder], ServerFolder]:
    """Three sites, and the server that `fedlog federate init` makes."""
    folder = make_server(ServerFolder(root / "server"))
    folder.config_file.touch()
    return {name: fill_site(SiteFolder(root / name), name, body) for name, body in BODIES.items()}, folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> ServerFolder:
    """A server with a run in the open and a private one, both by three sites over Flower's messages."""
    sites, folder = make_folders(tmp_path_factory.mktemp("federation"))
    for plan in (OPEN, PRIVATE):
        Run(InProcess(sites), folder, SCHEMA, plan, RoundRules(2, 20.0), quick_clock()).conduct()
    return folder


@pytest.fixture(scope="module")
def pages(server: ServerFolder) -> dict[str, Path]:
    assert main(["report", str(server.path)]) == 0
    return {plan.name: server.runs / plan.name / "report.html" for plan in (OPEN, PRIVATE)}


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with open_browser() as found:
        yield found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("name", ["open", "private"])
def test_the_page_is_whole_at_every_width(
    chrome: Chrome, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    look_as(chrome, width, scheme)
    visit(chrome, pages[name])
    figures = chrome.execute_script(AUDIT)
    shown = {figure["id"] for figure in figures}
    assert {"figure-bits-by-round", "figure-seconds-by-round", "figure-bits"} <= shown
    assert ("figure-clients" in shown) == (name == "open")
    for figure in figures:
        assert figure["shapes"] > 2, figure
        assert figure["inside"], figure
        assert len(figure["words"]) > 40, figure
        assert figure["letters"] >= 10, figure
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
    assert read_console(chrome) == []
    assert pages[name].stat().st_size < 2_000_000


def test_the_first_screen_has_the_sites_own_figures(
    chrome: Chrome, server: ServerFolder, pages: dict[str, Path]
) -> None:
    report = RunFolder.of_run(server, "open").read_report()
    assert report is not None
    look_as(chrome, PHONE)
    visit(chrome, pages["open"])
    result = chrome.find_element(By.CLASS_NAME, "result")
    assert result.location["y"] + result.size["height"] < 400
    for key in ("accuracy", "local_only_accuracy"):
        mean = sum(site[key] for site in report["sites"]) / 3
        assert f"{100 * mean:.1f} %" in result.text
    assert describe_bits(report["bits_up"] + report["bits_down"]) in result.text
    rows = [row.text for row in chrome.find_elements(By.CSS_SELECTOR, "section[aria-labelledby=sites] tbody tr")]
    assert len(rows) == 3
    for site, row in zip(report["sites"], rows, strict=True):
        assert row.startswith(f"{site['name']} {100 * site['accuracy']:.1f} %")
        assert site["body"] in row
        assert "3 of 3" in row
    text = chrome.find_element(By.TAG_NAME, "main").text
    assert f"{report['bits_up'] + report['bits_down']:,} bits in all" in text
    assert "flwr 1." in text
    assert "rows+f16" in text


def test_a_private_page_tells_no_sites_figures_but_what_was_spent(chrome: Chrome, pages: dict[str, Path]) -> None:
    look_as(chrome, DESKTOP)
    visit(chrome, pages["private"])
    text = chrome.find_element(By.TAG_NAME, "body").text
    assert "known to its site alone" in text
    assert "ε = 20" in text
    assert "releases" in text
    assert "gain, points" not in text
    assert "accuracy" not in chrome.find_element(By.TAG_NAME, "header").text


@pytest.mark.parametrize("plan", [OPEN, PRIVATE], ids=lambda plan: plan.name)
def test_the_command_at_the_end_makes_the_same_plan(server: ServerFolder, plan: Plan) -> None:
    words = shlex.split(read_deployed_run(server.runs / plan.name).command)
    assert words[:4] == ["fedlog", "federate", "run", str(server.path)]
    given = read_given_settings(parse_arguments(words[1:]))
    again = make_plan(apply_recipe(RunSpec(**given), given), plan.name, lambda: 3)
    assert replace(again, options={}) == replace(plan, options={})
    assert again.build_algorithm(3, 8) == plan.build_algorithm(3, 8)


def test_a_run_under_way_has_a_page_too(server: ServerFolder, tmp_path: Path) -> None:
    done = server.runs / "open"
    (tmp_path / "runs" / "open").mkdir(parents=True)
    for name in ("plan.json", "rounds.jsonl"):
        lines = (done / name).read_text().splitlines(keepends=True)
        (tmp_path / "runs" / "open" / name).write_text("".join(lines[:2] if name == "rounds.jsonl" else lines))
    assert main(["report", str(tmp_path / "runs" / "open")]) == 0
    page = (tmp_path / "runs" / "open" / "report.html").read_text()
    assert "Not finished: round 2 of 3." in page
    assert 'id="figure-bits-by-round"' in page


def test_its_tables_are_files_too(server: ServerFolder, tmp_path: Path) -> None:
    assert main(["report", str(server.runs / "open"), "--tables", str(tmp_path)]) == 0
    rows = list(csv.DictReader((tmp_path / "sites.csv").read_text().splitlines()))
    report = json.loads((server.runs / "open" / "report.json").read_text())
    assert [row["site"] for row in rows] == [site["name"] for site in report["sites"]]
    assert [float(row["accuracy, %"]) for row in rows] == pytest.approx(
        [100 * site["accuracy"] for site in report["sites"]], abs=0.005
    )
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 4
    assert "\\begin{tabular}" in (tmp_path / "rounds.tex").read_text()


def test_a_server_without_runs_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_server(ServerFolder(tmp_path / "server"))
    ServerFolder(tmp_path / "server").config_file.touch()
    assert main(["report", str(tmp_path / "server")]) == 2
    assert "hint: fedlog federate run" in capsys.readouterr().err


@dataclass
class Held(InProcess):
    """Holds back messages until the test allows their round."""

    home: RunFolder = field(default_factory=lambda: RunFolder(Path()))
    allowed: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def allow(self, rounds: int) -> None:
        """Let the run go on until so many rounds have ended."""
        with self.changed:
            self.allowed = rounds
            self.changed.notify_all()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.home.read_rounds()) < self.allowed, timeout=PATIENCE)
        return super().push_messages(messages)


def test_in_a_browser_the_page_follows_a_deployed_run(chrome: Chrome, tmp_path: Path) -> None:
    sites, folder = make_folders(tmp_path)
    post = Held(sites, home=RunFolder.of_run(folder, "open"))
    run = Run(post, folder, SCHEMA, OPEN, RoundRules(2, 20.0), quick_clock())
    conducting = threading.Thread(target=run.conduct)
    with serve(find_pages(folder.path)) as server:
        look_as(chrome, DESKTOP)
        visit(chrome, server.url)
        wait_for(chrome, "main", "No run yet")
        conducting.start()
        post.allow(1)
        wait_for(chrome, "main", "1 of 3, not finished")
        press(chrome, "main a[href='runs/open/']")
        wait_for(chrome, "header", "Not finished: round 1 of 3.")
        # Who has answered; no accuracy is known yet.
        rows = read_part(chrome, "section[aria-labelledby=sites] tbody").split("\n")
        assert [row.split("\t") for row in rows] == [[name, "1 of 1", "0"] for name in sorted(BODIES)]
        chrome.execute_script("window.unchanged = true")
        press(chrome, ".legend button")
        post.allow(2)
        wait_for(chrome, "header", "Not finished: round 2 of 3.")
        # Without loading anew: what was switched off stays so.
        assert read_part(chrome, "body", "ownerDocument.defaultView.unchanged")
        assert read_part(chrome, ".legend button", "ariaPressed") == "false"
        post.allow(OPEN.rounds + 1)
        conducting.join(PATIENCE)
        wait_for(chrome, "header", "training alone")
        assert "Not finished" not in read_part(chrome, "header")
        assert read_part(chrome, "#figure-clients", "id")
        assert read_part(chrome, ".live") == "live"
        assert read_console(chrome) == []
    assert not conducting.is_alive()


def test_a_run_of_a_server_can_be_watched_by_itself(server: ServerFolder) -> None:
    pages = find_pages(server.runs / "open")
    assert pages.list_runs(pages.folder) == [pages.folder]
    assert "report it after the last round" in pages.render(pages.folder, "1")
    before = hash_file_states(pages.list_files(pages.folder))
    os.utime(server.runs / "open" / "rounds.jsonl")
    assert hash_file_states(pages.list_files(pages.folder)) != before
