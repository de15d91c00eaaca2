"""Progress in a real notebook: a kernel runs the cells, and the test reads their output."""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.fixture(scope="module")
def cells() -> list[Any]:
    """The cells of a notebook after a kernel has run them."""
    import nbformat  # here, since it builds a grammar for a second and a half, which every process would wait for
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(text) for text in (FIRST, RUN, QUIET, COMPARE)]
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return list(notebook.cells)


def shown(cell: Any) -> str:
    """The whole output of a cell, as text."""
    texts = []
    for output in cell.outputs:
        texts.append(output.get("text", ""))
        texts += [str(value) for value in output.get("data", {}).values()]
    return "\n".join(texts)


def test_a_run_shows_its_rounds_and_its_outcome(cells: list[Any]) -> None:
    said = shown(cells[1])
    assert "fedlog on arrays: 2 clients, 3 rounds" in said
    assert "round 3/3" in said
    assert "accuracy" in said
    assert any("text/html" in output.get("data", {}) for output in cells[1].outputs)
    assert "will not be displayed" not in said  # what rich says where it cannot draw
    assert "Warning" not in said


def test_progress_can_be_switched_off(cells: list[Any]) -> None:
    assert "round" not in shown(cells[2])


def test_a_comparison_shows_its_tables_and_its_advice(cells: list[Any]) -> None:
    tables = [output.data["text/html"] for output in cells[3].outputs if "text/html" in output.get("data", {})]
    assert any("<table" in text and "fedlog" in text for text in tables)
    assert "Warning" not in shown(cells[3])
