"""The committed pages about the reproduction are those that the committed records make."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedlog.experiments.run.execute import SUMMARY
from fedlog.report.reproduction import write_markdown

ROOT = Path(__file__).parents[2]


def _unfinished(folder: str, names: list[str]) -> list[str]:
    """Cells that are still being computed beside us."""
    return [name for name in names if name.startswith("seed-") and not (Path(folder) / name / SUMMARY).exists()]


def test_the_pages_are_made_from_the_records(tmp_path: Path) -> None:
    if not (ROOT / "results").exists():
        pytest.skip("an installed package has no records")
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=_unfinished)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    write_markdown(tmp_path / "results", tmp_path / "docs")
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").glob("reproduction/*.md")]
    assert {path.name for path in pages} == {path.name for path in (tmp_path / "docs").glob("reproduction/*.md")}
    for page in ("reproduction.md", "privacy.md", *pages):
        written, committed = ((root / "docs" / page).read_text() for root in (tmp_path, ROOT))
        assert written == committed, f"docs/{page} is older than results/: run `fedlog docs`"
