"""The documentation site builds without a warning, needs no network, and its generated parts are those of the code."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from headless_browser import DESKTOP, PHONE, look_as, open_browser, read_console, visit, wait_for
from markdown_it import MarkdownIt

from fedlog.algorithms import registry
from fedlog.cli.docs import format_command_page
from fedlog.report.documents import method_results
from fedlog.report.documents.method_results import END, START, TITLE, write_method_results

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s]+)\)")
BUILD = ("build", "--strict")


class Assets(HTMLParser):
    """What a page loads by itself, and the pictures without a text."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note scripts, styles, pictures and frames."""
        found = dict(attrs)
        address = found.get("src") if tag in ("script", "img", "iframe") else None
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload", "preconnect"):
            address = found.get("href")
        if address:
            self.loaded.append(address)
        if tag == "img" and not found.get("alt"):
            self.silent.append(str(found.get("src")))


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs-site` does."""
    command = [sys.executable, "-m", "mkdocs", *BUILD, "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    out = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert {path.stem for path in DOCS.glob("*.md")} <= {page.stem for page in pages}
    for page in pages:
        assets = Assets()
        assets.feed(page.read_text())
        assert not [address for address in assets.loaded if "//" in address], page
        missing = [address for address in assets.loaded if not (page.parent / address.split("?")[0]).exists()]
        assert not missing or page.name == "404.html", page  # whose addresses are those of a server
        assert not assets.silent, page
    for page in DOCS.rglob("*.md"):
        assert_the_site_shows_it_as_a_code_host_does(page, site)
    listing = (site / "repository" / "results" / "advice.html").read_text()  # a folder that a page points to
    assert all(f'href="advice/{path.name}"' in listing for path in (ROOT / "results" / "advice").iterdir())
    reference = (site / "reference" / "python.html").read_text()
    for name in __import__("fedlog").__all__:
        assert f'id="fedlog.{name}"' in reference, f"{name} is not in docs/reference/python.md"


def assert_the_site_shows_it_as_a_code_host_does(page: Path, site: Path) -> None:
    """As many list items, tables, pictures and blocks of code as CommonMark sees; Python-Markdown by itself differs."""
    if page.name == "python.md":  # written from docstrings
        return
    host = MarkdownIt("commonmark").enable("table").render(page.read_text())
    built = (site / page.relative_to(DOCS)).with_suffix(".html").read_text()
    article = built.split("<article")[1].split("</article>")[0]
    for tag in ("li", "table", "img", "pre", "h2"):
        ours, theirs = (len(re.findall(rf"<{tag}[ >]", text)) for text in (article, host))
        assert ours == theirs, f"{page.name}: {ours} <{tag}> on the site, {theirs} on a code host"


LOOKED_AT = (
    "index.html",
    "getting-started.html",
    "methods/fedlog.html",
    "reproduction.html",
    "reproduction/table-mnist.html",
    "reference/python.html",
)
# What a reader would have to move the whole page for: tables and code scroll by themselves.
TOO_WIDE = """
return [...document.querySelectorAll("article *")].filter((each) =>
  each.getBoundingClientRect().right > innerWidth + 1
    && !each.closest(".md-typeset__scrollwrap, pre, code, .doc-heading")
).map((each) => each.outerHTML.slice(0, 80));
"""
# Figures in tables that a line break tears apart, such as `+0.3 ± 12.5`.
TORN = r"""
const torn = [];
for (const cell of document.querySelectorAll("article td")) {
  const words = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    for (const found of words.currentNode.data.matchAll(/[-+]?[\d.]+\s±\s[\d.]+(\s%)?/g)) {
      const range = document.createRange();
      range.setStart(words.currentNode, found.index);
      range.setEnd(words.currentNode, found.index + found[0].length);
      if (range.getClientRects().length > 1) torn.push(found[0]);
    }
  }
}
return torn;
"""
SEARCH = """
const field = document.querySelector(".md-search__input");
field.focus();
field.value = arguments[0];
for (const kind of ["input", "keyup"]) field.dispatchEvent(new Event(kind, { bubbles: true }));
"""


def test_read_from_a_disk_in_a_browser_pages_fit_and_the_search_finds(site: Path) -> None:
    with open_browser() as chrome:
        for page, width in itertools.product(LOOKED_AT, (PHONE, DESKTOP)):
            look_as(chrome, width, "dark" if width == PHONE else "light")
            visit(chrome, site / page)
            assert chrome.execute_script("return document.documentElement.scrollWidth") <= width, page
            assert chrome.execute_script(TOO_WIDE) == [], page
            assert chrome.execute_script(TORN) == [], page
            ground = chrome.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(255, 255, 255)") == (width == DESKTOP)  # as the device has it
            assert read_console(chrome) == [], page
        chrome.execute_script(SEARCH, "codec")
        wait_for(chrome, ".md-search-result__list", "Add a codec")
        assert read_console(chrome) == []


def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    """On a site of two pages, with the settings of the real one."""
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(f"{settings}\nnav: [faq.md, deploy.md, CONTRIBUTING.md, CHANGELOG.md]\n")
    shutil.copytree(DOCS / "_site", tmp_path / "docs" / "_site")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):  # which the site takes from the repository
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "docs" / "deploy.md").write_text("# Deployment\n")
    page = tmp_path / "docs" / "faq.md"
    page.write_text("[there](deploy.md#deployment), [gone](nowhere.md), [gone too](deploy.md#nothing-of-this-name)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "Aborted with 2 warnings in strict mode" in done.stderr + done.stdout
    assert "'nowhere.md'" in done.stderr
    assert "'#nothing-of-this-name'" in done.stderr


def test_make_builds_the_site_as_these_tests_do() -> None:
    done = subprocess.run(["make", "--dry-run", "docs-site"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"mkdocs {' '.join(BUILD)}\n" in done.stdout


def test_links_of_the_repositorys_own_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")):
        for link in LINK.findall(page.read_text()):
            if "://" not in link and not link.startswith("#"):
                assert (page.parent / link.split("#")[0]).exists(), f"{page.relative_to(ROOT)}: {link}"


def test_the_page_of_the_command_line_is_that_of_the_commands() -> None:
    committed = (DOCS / "reference" / "command-line.md").read_text()
    assert committed == format_command_page(), "docs/reference/command-line.md is old: run `fedlog docs`"
    assert "`--rounds N`" in committed
    assert "### `fedlog federate join`" in committed
    assert "%(" not in committed


def test_every_method_has_a_page_with_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, drawn = method_results._draw_method_picture, list[str]()

    def draw_once(*arguments: Any) -> str:  # a picture takes half a second, and each page has one
        drawn.extend([] if drawn else [draw(*arguments)])
        return drawn[0]

    monkeypatch.setattr(method_results, "_draw_method_picture", draw_once)
    shutil.copytree(DOCS, tmp_path / "docs")
    write_method_results(ROOT / "results", tmp_path / "docs")
    assert drawn[0].rstrip().endswith("</svg>")
    shown = set()
    for page in (DOCS / "methods").glob("*.md"):
        committed, written = page.read_text(), (tmp_path / "docs" / "methods" / page.name).read_text()
        assert committed == written, f"{page.name} is older than results/: run `fedlog docs`"
        if title := TITLE.search(committed):
            assert START in committed
            assert "No record of it" not in committed, page.name
            assert END in committed
            shown |= set(re.findall(r"`([^`]+)`", title[1]))
    assert shown == set(registry.METHODS)
