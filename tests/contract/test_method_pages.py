"""Every method has a page that says what it should, options and defaults included."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import pytest

from fedlog.algorithms.registry import METHODS, list_options

PAGES = Path(__file__).parents[2] / "docs" / "methods"


def page_of(method: str) -> str:
    (row,) = re.findall(rf"^\| `{method}` .*\]\((.*)\) \|$", (PAGES / "index.md").read_text(), re.MULTILINE)
    return (PAGES / row).read_text()


@pytest.mark.parametrize("method", METHODS)
def test_the_page_has_every_part(method: str) -> None:
    page = page_of(method)
    assert f"`{method}`" in page.splitlines()[0]
    for part in ("**Local:**", "**Sent:**", "**Phases of a round:**", "**Evaluated:**", "**Deviations.**"):
        assert part in page, part


@pytest.mark.parametrize("method", METHODS)
def test_the_page_has_every_option_with_its_default(method: str) -> None:
    stated: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", page_of(method), re.MULTILINE):
        stated |= zip(re.findall(r"`(\w+)`", names), defaults.replace("`", "").split(", "), strict=True)
    known = {}
    for name, default in list_options(method).items():
        shown = default.value if isinstance(default, Enum) else default
        known[name] = "none" if shown is None else str(shown)
    assert stated == known


def test_there_is_no_page_without_a_method() -> None:
    listed = set(re.findall(r"\]\((\S+\.md)\) \|$", (PAGES / "index.md").read_text(), re.MULTILINE))
    assert {path.name for path in PAGES.glob("*.md")} == listed | {"index.md"}
