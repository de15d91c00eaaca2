"""Run the notebooks of this folder and save them with their output: `make notebooks`."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent


def execute(notebook: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with the output of its cells, run in that folder."""
    found = nbformat.read(notebook, as_version=4)
    NotebookClient(found, timeout=600, resources={"metadata": {"path": str(folder)}}, record_timing=False).execute()
    # Which machine ran it is no part of an example.
    found.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return found


def main(names: list[str]) -> None:
    """Run the named notebooks, or all, and write them in their places."""
    for notebook in sorted(EXAMPLES.glob("*.ipynb")):
        if not names or notebook.stem in names:
            nbformat.write(execute(notebook, EXAMPLES), notebook)
            print(f"wrote: {notebook.relative_to(EXAMPLES.parent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
