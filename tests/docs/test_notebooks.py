"""The notebooks under examples/ run, and what is committed of them is what they show: results and pictures."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = tuple(sorted(path.stem for path in EXAMPLES.glob("*.ipynb")))


def script() -> ModuleType:
    """The script behind `make notebooks`."""
    spec = importlib.util.spec_from_file_location("execute", EXAMPLES / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def said(notebook: Any) -> str:
    """What the notebook prints, without the numbers: other machines may round them otherwise."""
    printed = "".join(output.text for output in outputs(notebook) if output.output_type == "stream")
    return re.sub(r"[-+]?\d+(\.\d+)?", "N", printed)


def test_the_four_questions_have_a_notebook() -> None:
    assert NAMES == ("first-federation", "own-method", "private-run", "worth-federating")
    assert all(f"({name}.ipynb)" in (EXAMPLES / "README.md").read_text() for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_what_is_committed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat  # here, since it builds a grammar for a second and a half, which every process would wait for

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONWARNINGS", "default")  # the kernel's own warnings are not the notebook's
    committed = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    run = script().execute(EXAMPLES / f"{name}.ipynb", tmp_path)
    assert not [output for output in outputs(run) if output.output_type == "error"]
    assert [cell.source for cell in run.cells] == [cell.source for cell in committed.cells]
    assert said(run) == said(committed), "old: run `make notebooks`"
    for notebook in (run, committed):
        assert any("image/png" in output.get("data", {}) for output in outputs(notebook)), "no picture"
    assert sys.prefix not in str(committed)  # nothing of the machine that ran it
