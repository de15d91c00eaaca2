"""The pages in a real browser: every figure is drawn, text fits every width, and the console has no errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from headless_browser import AUDIT, DESKTOP, PHONE, look_as, open_browser, read_console, visit
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import fedlog
from fedlog.report.pages.run_page import write_run_page
from fedlog.report.pages.runs_page import write_runs_page

if TYPE_CHECKING:
    from tests.conftest import MakeFederation

PAGES = ("run", "frozen", "private", "comparison", "runs")
MOST_BYTES = 2_000_000


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    with open_browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(make_federation: MakeFederation, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind, from real runs of three methods with two seeds."""
    folder = tmp_path_factory.mktemp("pages")
    data = make_federation([30, 45, 60], [20, 25, 40], n_class=3, name="made up")
    short = {"rounds": 3, "epochs": 1, "progress": False}
    common = {"body": "mlp:8,4", **short}
    found = fedlog.compare(data, ["fedlog", "fedavg"], 2, out=folder / "runs", validation_fraction=0.3, **common)
    promise = {"privacy": "client", "epsilon": 4.0, "delta": 1e-3, "trust": "central", "message_norm": 20.0}
    fedlog.run(data, "fedlog", out=folder / "private", **promise, **common)
    once = {"body": "mlp:8,4", "body_training": "frozen", "validation_fraction": 0.3, "progress": False}
    fedlog.run(data, "fedlog-once", out=folder / "frozen", **once)
    return {
        "frozen": write_run_page(folder / "frozen"),
        "run": write_run_page(folder / "runs" / "fedlog" / "seed-0"),
        "private": write_run_page(folder / "private"),
        "comparison": found.write_page(folder / "comparison.html"),
        "runs": write_runs_page(folder / "runs"),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("name", PAGES)
def test_every_figure_is_drawn_and_told(
    chrome: Chrome, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    look_as(chrome, width, scheme)
    visit(chrome, pages[name])
    figures = chrome.execute_script(AUDIT)
    assert len(figures) >= 2
    for figure in figures:
        assert figure["shapes"] > 2, figure
        assert figure["width"] > 250, figure
        assert figure["inside"], figure
        assert len(figure["words"]) > 40, figure
        assert figure["letters"] >= 10, figure
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
    assert read_console(chrome) == []
    assert chrome.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert pages[name].stat().st_size < MOST_BYTES


def test_the_three_figures_of_a_comparison_stand_side_by_side(chrome: Chrome, pages: dict[str, Path]) -> None:
    look_as(chrome, DESKTOP)
    visit(chrome, pages["comparison"])
    figures = chrome.find_elements(By.CSS_SELECTOR, ".figures > figure")
    assert len(figures) == 3
    assert len({figure.rect["y"] for figure in figures}) == 1


def test_the_first_screen_of_a_phone_has_the_result_and_its_baselines(chrome: Chrome, pages: dict[str, Path]) -> None:
    look_as(chrome, PHONE)
    visit(chrome, pages["run"])
    result = chrome.find_element(By.CLASS_NAME, "result")
    assert result.location["y"] + result.size["height"] < 400
    assert "training alone" in result.text
    assert "FedAvg" in result.text
    assert "% with" in result.text


def test_the_run_page_has_everything_that_a_run_knows(chrome: Chrome, pages: dict[str, Path]) -> None:
    look_as(chrome, DESKTOP)
    visit(chrome, pages["run"])
    shown = {each.get_attribute("id") for each in chrome.find_elements(By.TAG_NAME, "figure")}
    wanted = {"accuracy-by-round", "accuracy-by-bits", "clients", "sizes", "bits", "geometry"}
    assert {f"figure-{name}" for name in wanted} <= shown
    text = chrome.find_element(By.TAG_NAME, "main").text
    for part in ("Lowest: client-", "gain, points", "calibration error", "validation fraction", "statistics"):
        assert part in text, part
    assert chrome.find_element(By.CSS_SELECTOR, "pre.command").text.startswith("fedlog.run(federation, 'fedlog'")
    visit(chrome, pages["frozen"])
    calibration = chrome.find_element(By.CSS_SELECTOR, "[data-group=calibration]")
    names = [each.text for each in calibration.find_elements(By.CSS_SELECTOR, ".legend button")]
    assert names == ["softmax", "softmax with temperature", "Laplace"]
    assert len(calibration.find_elements(By.CSS_SELECTOR, "tbody tr")) == 3
    visit(chrome, pages["private"])
    assert "ε = 4" in chrome.find_element(By.ID, "privacy").find_element(By.XPATH, "..").text


def test_a_line_can_be_switched_off_and_the_axis_follows(chrome: Chrome, pages: dict[str, Path]) -> None:
    look_as(chrome, DESKTOP)
    visit(chrome, pages["run"])
    group = chrome.find_element(By.CSS_SELECTOR, "[data-group=accuracy]")
    figure = group.find_element(By.ID, "figure-accuracy-by-round")
    buttons = {each.text: each for each in group.find_elements(By.CSS_SELECTOR, ".legend button")}
    assert set(buttons) == {"FedLog", "training alone", "FedAvg"}

    def levels() -> list[str]:
        marks = figure.find_elements(By.CSS_SELECTOR, ".level-mark:not(.off) text")
        return [each.get_attribute("textContent") or "" for each in marks]

    before, drawn = levels(), figure.find_element(By.CSS_SELECTOR, "[data-key=fedlog] .line").get_attribute("d")
    for name in ("FedAvg", "training alone"):
        buttons[name].click()
    assert buttons["FedAvg"].get_attribute("aria-pressed") == "false"
    line = figure.find_element(By.CSS_SELECTOR, "[data-key=fedavg] .line")
    assert not line.is_displayed()
    assert levels() != before
    values = [float(each) for each in levels()]
    assert max(values) - min(values) < float(before[-1]) - float(before[0])
    assert figure.find_element(By.CSS_SELECTOR, "[data-key=fedlog] .line").get_attribute("d") != drawn
    for name in ("FedAvg", "training alone"):
        buttons[name].click()
    assert line.is_displayed()
    assert levels() == before
    assert read_console(chrome) == []


def test_values_appear_under_the_pointer_and_by_keys(chrome: Chrome, pages: dict[str, Path]) -> None:
    look_as(chrome, DESKTOP)
    visit(chrome, pages["run"])
    figure = chrome.find_element(By.ID, "figure-accuracy-by-round")
    tip = figure.find_element(By.CLASS_NAME, "tip")
    assert not tip.is_displayed()
    mark = figure.find_elements(By.CSS_SELECTOR, "[data-key=fedlog] .mark")[-1]
    ActionChains(chrome).scroll_to_element(figure).move_to_element(mark).perform()
    assert tip.is_displayed()
    assert ", round 3: " in tip.text
    assert " %" in tip.text
    svg = figure.find_element(By.TAG_NAME, "svg")
    chrome.execute_script("arguments[0].focus()", svg)
    svg.send_keys(Keys.ARROW_RIGHT)
    assert tip.text.startswith("FedLog, round 1: ")
    svg.send_keys(Keys.ARROW_RIGHT)
    assert tip.text.startswith("FedLog, round 2: ")


def test_dark_is_dark_and_words_stand_out(chrome: Chrome, pages: dict[str, Path]) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        look_as(chrome, DESKTOP, scheme)
        visit(chrome, pages["run"])
        for part in ("body", ".quiet", "figcaption", "summary"):
            style = "getComputedStyle(document.querySelector(arguments[0]))"
            ink = _luminance(chrome.execute_script(f"return {style}.color", part))
            paper = _luminance(chrome.execute_script("return getComputedStyle(document.body).backgroundColor"))
            assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5, (scheme, part)
            shades[scheme] = paper
    assert shades["light"] > 0.8 > 0.1 > shades["dark"]


def _luminance(colour: str) -> float:
    channels = [float(each) / 255 for each in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_on_paper_there_is_ink_and_nothing_to_click(chrome: Chrome, pages: dict[str, Path]) -> None:
    look_as(chrome, 794, "dark", "print")
    visit(chrome, pages["run"])
    assert not chrome.find_element(By.CSS_SELECTOR, "nav.contents").is_displayed()
    paper = chrome.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert _luminance(paper) == pytest.approx(1)
    line = "getComputedStyle(document.querySelector('#figure-accuracy-by-round [data-key=local] .line')).stroke"
    assert _luminance(chrome.execute_script(f"return {line}")) < 0.1
    chrome.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert all(each.get_attribute("open") for each in chrome.find_elements(By.TAG_NAME, "details"))


def test_from_the_list_of_runs_to_a_run(chrome: Chrome, pages: dict[str, Path]) -> None:
    look_as(chrome, DESKTOP)
    visit(chrome, pages["runs"])
    chrome.find_element(By.LINK_TEXT, "fedavg/seed-1").click()
    assert chrome.find_element(By.TAG_NAME, "h1").text.startswith("FedAvg on made up")
