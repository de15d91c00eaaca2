"""Open pages in a real browser without a window, and read the page and the console."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass(frozen=True)
class Visit:
    """What a browser made of a page."""

    dom: str
    complaints: list[str]  # of its console: scripts, styles or pictures that were refused or missing


def visit(url: str, profile: Path, screenshot: Path | None = None) -> Visit:
    """Open the page and return it; skip the test where there is no browser."""
    if BROWSER is None:
        pytest.skip("needs chromium")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
    flags += ["--disable-dev-shm-usage", "--enable-logging=stderr", "--v=0", "--window-size=800,1200"]
    if screenshot is not None:
        subprocess.run(
            [BROWSER, *flags, f"--screenshot={screenshot}", url], check=True, capture_output=True, timeout=180
        )
    done = subprocess.run([BROWSER, *flags, "--dump-dom", url], check=True, capture_output=True, text=True, timeout=180)
    return Visit(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line])
