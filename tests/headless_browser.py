"""A headless Chromium for tests, and helpers to look at pages in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
PHONE, DESKTOP = 400, 1400
PATIENCE = 120  # seconds that a page may take to show what it is waited for

# For every figure: whether something is drawn in it, and its text alternative.
AUDIT = """
const wordsOf = (each) => {
  const named = (each.getAttribute("aria-labelledby") || "").split(" ").filter(Boolean);
  return named.map((id) => document.getElementById(id)?.textContent.trim() ?? "").join(" | ");
};
return [...document.querySelectorAll("figure")].map((figure) => {
  const picture = figure.querySelector("[role=img], img");
  const shapes = [...figure.querySelectorAll("svg path, svg rect, svg circle")].filter((shape) => {
    const box = shape.getBoundingClientRect();
    return box.width + box.height > 1;
  });
  const box = picture.getBoundingClientRect();
  const image = picture.tagName === "IMG";
  return {
    id: figure.id,
    width: box.width,
    height: box.height,
    shapes: image ? picture.naturalWidth : shapes.length,
    words: image ? picture.alt : wordsOf(picture),
    inside: box.left >= 0 && box.right <= window.innerWidth + 1,
    letters: Math.min(...[...figure.querySelectorAll("svg text")].map((text) =>
      parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getBoundingClientRect().width
        / text.ownerSVGElement.viewBox.baseVal.width), 99),
  };
});
"""


def find_browser() -> tuple[str, str]:
    """The paths of the browser and its driver; skips the test if one is missing."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no Chromium with chromedriver on this machine (Debian: apt-get install chromium chromium-driver)")
    return browser, driver


@contextmanager
def open_browser() -> Iterator[webdriver.Chrome]:
    """A new browser with a profile of its own, ended afterwards."""
    browser, driver = find_browser()
    with tempfile.TemporaryDirectory(prefix="fedlog-browser-") as profile:
        options = Options()
        options.binary_location = browser
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        chrome = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield chrome
        finally:
            chrome.quit()


def look_as(chrome: webdriver.Chrome, width: int, scheme: str = "light", medium: str = "screen") -> None:
    """Show pages on a screen of that width, in that colour scheme; or as they are printed."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": features})


def visit(chrome: webdriver.Chrome, page: Path | str) -> None:
    """Open the page, and forget what the console said before."""
    chrome.get_log("browser")  # type: ignore[no-untyped-call]
    chrome.get(page if isinstance(page, str) else page.resolve().as_uri())


def read_console(chrome: webdriver.Chrome) -> list[str]:
    """What the console has said since the page was opened, warnings and errors."""
    said: list[dict[str, Any]] = chrome.get_log("browser")  # type: ignore[no-untyped-call]
    return [each["message"] for each in said if each["level"] in ("WARNING", "SEVERE")]


# A live page replaces its parts at any moment: what is read or pressed is found and used in one step, in the page.
def read_part(chrome: webdriver.Chrome, selector: str, how: str = "innerText") -> Any:
    """The text, or another property, of the first element that matches; None if none does."""
    return chrome.execute_script(f"return document.querySelector(arguments[0])?.{how} ?? null", selector)


def press(chrome: webdriver.Chrome, selector: str) -> None:
    """Click the first such element."""
    chrome.execute_script("document.querySelector(arguments[0]).click()", selector)


def wait_for(chrome: webdriver.Chrome, selector: str, text: str) -> None:
    """Wait until the first such element shows the text."""
    WebDriverWait(chrome, PATIENCE, poll_frequency=0.1).until(lambda page: text in (read_part(page, selector) or ""))
