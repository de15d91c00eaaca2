"""The Python blocks and `$` commands of every page, in order, as a reader would type them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
)
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
SAVE_AS = re.compile(r"Save it as `(\w+\.py)`")


@dataclass(frozen=True)
class Code:
    """A Python block, and the file that the page asks to save it in."""

    text: str
    save_as: str | None


@dataclass(frozen=True)
class Command:
    """A line after `$`, without its remark."""

    text: str


def blocks(page: str) -> Iterator[Code | Command]:
    """The page's Python blocks and commands."""
    written = (ROOT / page).read_text()
    for found in FENCE.finditer(written):
        text = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        if found["language"] == "python":
            introduction = written[: found.start()].rstrip().rpartition("\n\n")[2]
            save_as = SAVE_AS.search(introduction)
            yield Code(text, save_as[1] if save_as else None)
        else:
            for line in text.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    yield Command(re.sub(r"\s+# .*$", "", line.removeprefix("$ ")).strip())


def commands() -> Iterator[tuple[str, str]]:
    """Every command with its page."""
    for page in PAGES:
        for block in blocks(page):
            if isinstance(block, Command):
                yield page, block.text


def spoken_commands() -> Iterator[tuple[str, str]]:
    """The `fedlog ...` commands within sentences and tables, with their pages; they are not run, but must be valid."""
    for page in PAGES:
        for text in re.findall(r"(?<!`)`(fedlog [^`]+)`(?!`)", FENCE.sub("", (ROOT / page).read_text())):
            yield page, text
