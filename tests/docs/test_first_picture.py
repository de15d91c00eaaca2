"""The README's first commands lead to a picture of a user's CSV files in fewer than five steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import ROOT, Command, blocks
from test_pages import write_materials

PICTURE = Path("runs/mine/report.html")


def first_commands() -> list[str]:
    """The commands at the top of the README, up to the one that leaves the picture."""
    found = []
    for block in blocks("README.md"):
        if isinstance(block, Command):
            found.append(block.text)
            if str(PICTURE.parent) in block.text:
                return found
    raise AssertionError(f"no command of the README leaves {PICTURE}")


def type_in(command: str, folder: Path) -> None:
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"


def assert_is_a_picture(page: Path) -> None:
    """One file with a drawing inside."""
    text = page.read_text()
    assert "<svg" in text or "data:image/" in text
    assert len(text) < 2_000_000


def test_it_takes_fewer_than_five_commands() -> None:
    typed = first_commands()
    assert typed[0] == "make install"
    assert len(typed) < 5


def test_after_the_installation_the_commands_of_the_readme_draw_ones_own_files(tmp_path: Path) -> None:
    write_materials(tmp_path)  # its .venv is the one of these tests
    for command in first_commands()[1:]:
        type_in(command, tmp_path)
    assert_is_a_picture(tmp_path / PICTURE)


@pytest.mark.slow
def test_the_same_from_a_new_clone_with_its_installation(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    write_materials(tmp_path)
    (tmp_path / "FOLDER").rename(clone / "FOLDER")
    for command in first_commands():
        type_in(f"PYTHON={sys.executable} {command}" if command.startswith("make") else command, clone)
    assert_is_a_picture(clone / PICTURE)
