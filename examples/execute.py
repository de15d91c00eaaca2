"""Run the notebooks of this folder and save them with their output: `make notebooks`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent
FORGET = "%reset -f"  # deletes every name that the cells before it made


def read(notebook: Path) -> nbformat.NotebookNode:
    """The notebook in this file."""
    return nbformat.read(notebook, as_version=4)


def execute(notebooks: Sequence[nbformat.NotebookNode], folder: Path) -> None:
    """Run the notebooks in that folder, one after another, and put the output into their cells.

    They share a kernel, so that PyTorch is imported once; each starts without the names of the one before.
    """
    joined = nbformat.v4.new_notebook()
    joined.cells = [
        cell for notebook in notebooks for cell in (nbformat.v4.new_code_cell(FORGET), *notebook.cells)
    ]  # the cells themselves, not copies
    NotebookClient(joined, timeout=600, resources={"metadata": {"path": str(folder)}}, record_timing=False).execute()
    for notebook in notebooks:
        _number_cells(notebook)
        # Which machine ran it is no part of an example.
        notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def _number_cells(notebook: nbformat.NotebookNode) -> None:
    """Number the cells from 1, as in a kernel of their own."""
    numbers = count(1)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = next(numbers)
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = cell.execution_count


def main(names: list[str]) -> None:
    """Run the named notebooks, or all, and write them in their places."""
    paths = [path for path in sorted(EXAMPLES.glob("*.ipynb")) if not names or path.stem in names]
    notebooks = [read(path) for path in paths]
    execute(notebooks, EXAMPLES)
    for path, notebook in zip(paths, notebooks, strict=True):
        nbformat.write(notebook, path)
        print(f"wrote: {path.relative_to(EXAMPLES.parent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
