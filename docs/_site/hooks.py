"""How the site is made from the repository's Markdown: what mkdocs calls while it builds.

Pages are written for a code host, where a link may lead out of docs/ to a record, a figure or CONTRIBUTING.md. Here
each such file is taken into the site, and the link follows it; a folder becomes a page that lists its files. A link to
a file that does not exist is left as it is, and mkdocs refuses it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES_OF_THE_REPOSITORY = ("CONTRIBUTING.md", "CHANGELOG.md")  # pages of their own; other files are copied as they are
COPIES = "repository"
ITEM = re.compile(r"(\d+\.|[-*]) ")
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
CELL = re.compile(r"<(?P<tag>t[dh])(?P<attributes>[^>]*)>(?P<text>.*?)</(?P=tag)>", re.DOTALL)
# A space at which no line may end: around a sign, before a unit, inside an interval, and in "(10 seeds)".
TOGETHER = re.compile(
    r" (?=[±→⇓%])|(?<=[±→]) |(?<=\d) (?=(?:[kMG]?bi?t?s?|[kMG]?B|bytes|seeds?|points?|ms|min|s|h)\b)"
    r"|(?<=\d,) (?=[-+]?[\d.]+\])|(?<=\d) (?=\(\d+\))"
)
SHORT = 14  # characters of a cell that is never broken: `LG-FedAvg 1`, `+0.3 ± 12.5`
CODE = re.compile(r"<code>([^<\n]{1,24})</code>")  # the name of an option, which would be broken after `--`
PICTURE = re.compile(r'(?<!">)<img [^>]*src="(?P<file>[^"]+\.svg)"[^>]*>(?!</a>)')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the navigation of the folders that have one page a method, or an experiment."""
    assert config.nav is not None
    config.nav = [_fill(entry) for entry in config.nav]
    return config


def _fill(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    ((title, below),) = entry.items()
    if not (isinstance(below, str) and below.endswith("/")):
        return entry
    first = f"{below}index.md" if (DOCS / below / "index.md").exists() else f"{below.rstrip('/')}.md"
    folder = DOCS / below
    listed = [((DOCS / first).parent / link).resolve() for _, link, _ in LINK.findall((DOCS / first).read_text())]
    order = {path: at for at, path in reversed(list(enumerate(listed)))}  # as the first page lists them
    pages = sorted(folder.glob("*.md"), key=lambda path: (order.get(path, len(listed)), path.name))
    return {title: [first, *(page for path in pages if (page := path.relative_to(DOCS).as_posix()) != first)]}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take in the repository's own pages, and every file outside docs/ that a page points to."""
    for name in PAGES_OF_THE_REPOSITORY:
        files.append(File.generated(config, name, content=_for_the_root(ROOT / name)))
    linked = {
        target for page in DOCS.rglob("*.md") for _, link, _ in LINK.findall(page.read_text())
        if (target := _outside(link, page.parent)) is not None
    }  # fmt: skip
    for folder in sorted(target for target in linked if target.is_dir()):
        listing = File.generated(config, _site_name(folder), content=_list_folder(folder))
        listing.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(listing)
        linked |= set(_files_in(folder))
    for target in sorted(target for target in linked if target.is_file()):
        source = File.generated(config, _site_name(target), abs_src_path=str(target))
        source.inclusion = InclusionLevel.INCLUDED
        files.append(source)
    return files


def _list_folder(folder: Path) -> str:
    """A page with a link to each file of the folder."""
    items = "\n".join(f"- [{path.name}]({folder.name}/{path.name})" for path in _files_in(folder))
    return f"# {folder.relative_to(ROOT).as_posix()}\n\n{items}\n"


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def on_post_build(config: MkDocsConfig) -> None:
    """Write the search index as a script too: a page that is read from a disk may load nothing else."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(f"var __index = {index.read_text()}")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links out of docs/ to the copies in the site."""
    here = DOCS / Path(page.file.src_uri).parent

    def follow(found: re.Match[str]) -> str:
        target = _outside(found[2], here)
        if target is None:
            return found[0]
        return f"{found[1]}{os.path.relpath(DOCS / _site_name(target), here)}{found[3]}"

    return LINK.sub(follow, as_python_markdown(markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the figures of a table in one piece, and let a drawing be opened by itself, where it can be enlarged."""
    html = CELL.sub(_keep_together, CODE.sub(r"<code data-short>\1</code>", html))
    return PICTURE.sub(lambda found: f'<a href="{found["file"]}">{found[0]}</a>', html)


def _keep_together(cell: re.Match[str]) -> str:
    """The cell, with unbreakable spaces within figures; a short cell is not broken at all."""
    tag, text = cell["tag"], TOGETHER.sub("\u00a0", cell["text"])
    short = tag == "td" and len(re.sub(r"<[^>]+>", "", text)) <= SHORT
    return f"<{tag}{cell['attributes']}{' data-short' if short else ''}>{text}</{tag}>"


def as_python_markdown(text: str) -> str:
    """The text of a code host as Python-Markdown reads it: a blank line before a list, list items indented by four."""
    written: list[str] = []
    fenced, numbered = False, False
    for line in text.split("\n"):
        before = written[-1] if written else ""
        if not fenced and line[:1].strip():
            numbered = bool(re.match(r"\d+\. ", line))
        if not fenced and ITEM.match(line) and before.strip() and not ITEM.match(before):
            written.append("")
        if line.lstrip().startswith("```"):
            fenced = not fenced
        written.append(f" {line}" if numbered and line.startswith("   ") else line)
    return "\n".join(written)


def _for_the_root(path: Path) -> str:
    """A page of the repository's root as one of docs/: its links into docs/ lose that folder."""
    return re.sub(r"\]\(docs/", "](", path.read_text())


def _outside(link: str, folder: Path) -> Path | None:
    """The existing file or folder outside docs/ that a link leads to."""
    if "://" in link or link.startswith("mailto:"):
        return None
    target = (folder / link).resolve()
    if target.is_relative_to(DOCS) or not target.is_relative_to(ROOT) or not target.exists():
        return None
    return target


def _site_name(target: Path) -> str:
    name = target.relative_to(ROOT).as_posix() + (".md" if target.is_dir() else "")
    return name if name in PAGES_OF_THE_REPOSITORY else f"{COPIES}/{name}"
