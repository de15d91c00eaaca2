"""Imports point one way, from the command line down to the mathematics."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedlog

ROOT = Path(fedlog.__file__).parent
# A station may import those of lower levels, and itself; two on one level do not know each other.
LEVELS = (
    {"errors", "__init__"},
    {"core"},
    {"wire"},
    {"privacy"},
    {"data"},
    {"models"},  # a saved model knows the schema of the records it takes; data know no model
    {"algorithms"},
    {"engine"},
    {"flower", "experiments"},
    {"report"},
    {"cli"},
)
LEVEL = {station: number for number, stations in enumerate(LEVELS) for station in stations}
# The head in scikit-learn's shape stands beside the flow: it uses the core alone.
ASIDE = {"estimator": {"core", "errors"}}
MODULES = sorted(ROOT.rglob("*.py"))


def _station(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imported(path: Path) -> set[str]:
    """The stations that a module imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where they point"
            module = node.module or ""
            names = [f"fedlog.{alias.name}" for alias in node.names] if module == "fedlog" else [module]
        found |= {name.split(".")[1] for name in names if name.startswith("fedlog.")} - {"__version__"}
    return found


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])
def test_imports_point_one_way(path: Path) -> None:
    here = _station(path)
    for there in _imported(path) - {here}:
        if here in ASIDE:
            assert there in ASIDE[here], f"{here} imports {there}"
        else:
            assert LEVEL[there] < LEVEL[here], f"{here} imports {there}"


def test_every_module_has_a_place_in_the_order() -> None:
    stations = {_station(path) for path in MODULES}
    assert stations <= LEVEL.keys() | ASIDE.keys()
    assert LEVEL.keys() <= stations
    assert len(MODULES) > 60


def test_the_parser_sees_every_form_of_import(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text(
        "import fedlog.wire.codec\nfrom fedlog import core\n"
        "def f():\n    from fedlog.cli.main import main\nif 0:\n    import fedlog.data as d, os\n"
    )
    assert _imported(source) == {"wire", "core", "cli", "data"}
