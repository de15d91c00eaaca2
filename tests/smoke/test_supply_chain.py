"""Installed packages are checked against hashes, and listed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def _lock_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock_hashes", ROOT / "tools" / "lock_hashes.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def _wheel(folder: Path, content: str) -> None:
    with zipfile.ZipFile(folder / "tiny_thing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_thing.py", content)
        about = "tiny_thing-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def test_pip_takes_files_with_their_hash_and_no_others(tmp_path: Path) -> None:
    tool = _lock_tool()
    _wheel(tmp_path, "value = 1\n")
    here = ["--no-index", "--find-links", str(tmp_path)]
    (line,) = tool.write_lines(tool.resolve(["--no-deps", *here, "tiny-thing==1.0"]))
    assert line.startswith("tiny-thing==1.0 --hash=sha256:")
    (tmp_path / "hashed.txt").write_text(line + "\n")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", *here]
    command = [*install, "--target", str(tmp_path / "taken"), "--requirement", str(tmp_path / "hashed.txt")]
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "taken" / "tiny_thing.py").read_text() == "value = 1\n"
    _wheel(tmp_path, "value = 2  # changed on the way\n")
    command[command.index(str(tmp_path / "taken"))] = str(tmp_path / "refused")
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr


def test_the_makefile_offers_hashes_and_a_list_of_what_is_installed() -> None:
    targets = (ROOT / "Makefile").read_text()
    assert "--require-hashes --requirement requirements-hashed.txt" in targets
    assert "cyclonedx-py environment" in targets
