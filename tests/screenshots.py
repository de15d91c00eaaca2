"""The screenshots under docs/images, from committed records and one short run: `make screenshots`."""

from __future__ import annotations

import base64
import io
import shutil
import sys
import tempfile
from pathlib import Path

from headless_browser import DESKTOP, PHONE, look_as, open_browser, visit
from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

import fedlog
from fedlog.report.pages.run_page import write_run_page
from fedlog.report.pages.runs_page import write_runs_page

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
TABLE = ROOT / "results" / "table-mnist"
METHODS = ("fedlog", "local", "fedavg")
COLOURS = 256  # of a palette: a screenshot has few, and the file is a third as large


def main() -> int:
    """Take every screenshot; return exit code 0."""
    with tempfile.TemporaryDirectory(prefix="fedlog-screenshots-") as scratch, open_browser() as chrome:
        folder = Path(scratch)
        for method in METHODS:
            shutil.copytree(TABLE / method / "seed-0", folder / "mnist" / method / "seed-0")
        page = write_run_page(folder / "mnist" / "fedlog" / "seed-0")
        _take(chrome, page, "report-light.png", DESKTOP, "light", height=1080)
        _take(chrome, page, "report-phone.png", PHONE, "dark", height=820)
        _take(chrome, write_runs_page(folder / "mnist"), "report-runs.png", DESKTOP, "dark", height=860)
        fedlog.run("digits", "fedlog", out=folder / "digits" / "fedlog", progress=False)
        fedlog.run("digits", "local", out=folder / "digits" / "local", progress=False)
        page = write_run_page(folder / "digits" / "fedlog")
        _take(chrome, page, "report-class-means.png", 620, "light", part="figure-geometry")
    return 0


def _take(
    chrome: Chrome, page: Path, name: str, width: int, scheme: str, height: int = 0, part: str | None = None
) -> None:
    look_as(chrome, width, scheme)
    visit(chrome, page)
    if part is None:
        box = {"x": 0, "y": 0, "width": width, "height": height}
    else:
        rect = chrome.find_element(By.ID, part).rect
        box = {key: rect[key] for key in ("x", "y", "width", "height")}
    asked = {"format": "png", "captureBeyondViewport": True, "clip": {**box, "scale": 1}}
    picture = chrome.execute_cdp_cmd("Page.captureScreenshot", asked)["data"]
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB").quantize(COLOURS)
    image.save(IMAGES / name, optimize=True)
    print(f"wrote: {IMAGES / name} ({(IMAGES / name).stat().st_size // 1000} kB)")


if __name__ == "__main__":
    sys.exit(main())
