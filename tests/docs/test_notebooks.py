"""Notebooks in a real kernel: those under examples/ run and show what is committed, and a run shows its progress."""

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
FIRST = """
import numpy as np
import fedlog
y = np.arange(60) % 2
X = np.random.default_rng(0).normal(size=(60, 3)) + y[:, None]
federation = fedlog.Federation.from_arrays({"north": (X, y), "south": (X, y)})
"""
RUN = "result = fedlog.run(federation, rounds=3, body='mlp:4', epochs=1)\nresult"
QUIET = "fedlog.run(federation, rounds=1, body='mlp:4', epochs=1, progress=False);"
COMPARE = "found = fedlog.compare(federation, ['fedlog'], 2, rounds=1, body='mlp:4', epochs=1)\nfound"


def script() -> ModuleType:
    """The script behind `make notebooks`."""
    spec = importlib.util.spec_from_file_location("execute", EXAMPLES / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The notebooks under examples/ by name, and one with runs that show their progress, after a kernel ran them."""
    import nbformat  # here, since it builds a grammar for a second and a half, which every process would wait for

    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(text) for text in (FIRST, RUN, QUIET, COMPARE)]
    notebooks = {**{name: script().read(EXAMPLES / f"{name}.ipynb") for name in NAMES}, "progress": made}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONWARNINGS", "default")  # the kernel's own warnings are not the notebook's
        script().execute(list(notebooks.values()), tmp_path_factory.mktemp("notebooks"))
    return notebooks


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
def test_a_notebook_runs_and_shows_what_is_committed(name: str, executed: dict[str, Any]) -> None:
    run, committed = executed[name], script().read(EXAMPLES / f"{name}.ipynb")
    assert not [output for output in outputs(run) if output.output_type == "error"]
    assert [cell.source for cell in run.cells] == [cell.source for cell in committed.cells]
    assert [cell.get("execution_count") for cell in run.cells] == [
        cell.get("execution_count") for cell in committed.cells
    ]
    assert said(run) == said(committed), "old: run `make notebooks`"
    for notebook in (run, committed):
        assert any("image/png" in output.get("data", {}) for output in outputs(notebook)), "no picture"
    assert sys.prefix not in str(committed)  # nothing of the machine that ran it


def shown(cell: Any) -> str:
    """The whole output of a cell, as text."""
    texts = []
    for output in cell.outputs:
        texts.append(output.get("text", ""))
        texts += [str(value) for value in output.get("data", {}).values()]
    return "\n".join(texts)


def test_a_run_shows_its_rounds_and_its_outcome(executed: dict[str, Any]) -> None:
    cell = executed["progress"].cells[1]
    assert "fedlog on arrays: 2 clients, 3 rounds" in shown(cell)
    assert "round 3/3" in shown(cell)
    assert "accuracy" in shown(cell)
    assert any("text/html" in output.get("data", {}) for output in cell.outputs)
    assert "will not be displayed" not in shown(cell)  # what rich says where it cannot draw
    assert "Warning" not in shown(cell)


def test_progress_can_be_switched_off(executed: dict[str, Any]) -> None:
    assert "round" not in shown(executed["progress"].cells[2])


def test_a_comparison_shows_its_tables_and_its_advice(executed: dict[str, Any]) -> None:
    cell = executed["progress"].cells[3]
    tables = [output.data["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]
    assert any("<table" in text and "fedlog" in text for text in tables)
    assert "Warning" not in shown(cell)
