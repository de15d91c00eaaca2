"""Imports point one way, from the command line down to the mathematics."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedlog

ROOT = Path(fedlog.__file__).parent
# A room may import those of lower levels, and itself; two on one level do not know each other.
LEVELS = (
    {"errors"},
    {"files"},
    {"core"},
    {"estimators"},  # scikit-learn's face of the heads in core
    {"wire"},
    {"privacy"},
    {"data"},
    {"models"},  # a saved model knows the schema of the records it takes; data know no model
    {"algorithms"},
    {"settings"},
    {"engine"},  # clients: who takes part
    {"engine/training"},
    {"engine/protocol"},
    {"engine/simulate"},
    {"flower/folders", "experiments/run", "audit"},
    {"flower/protocol", "experiments/tables"},
    {"flower/site", "flower/server", "experiments/workers"},
    {"flower/ops", "experiments/compare"},
    {"report/parts", "testing"},
    {"report/compare", "report/paper"},
    {"report/pages", "report/documents"},
    {"report"},  # exported_tables: the tables of every room
    {"api"},
    {"cli"},
    {"__init__", "__main__"},  # names, each imported when it is asked for; the command line as `python -m fedlog`
)
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
# These know nothing of each other, whatever their levels.
APART = ({"flower", "experiments"}, {"flower", "audit"}, {"flower", "report"}, {"algorithms", "privacy"})
# Packages whose sub-packages are rooms of their own; a sub-package elsewhere belongs to its package.
DIVIDED = {"engine", "flower", "experiments", "report"}
MODULES = sorted(ROOT.rglob("*.py"))


def _room(path: Path) -> str:
    """The room of a module: its package, or its sub-package in a divided package."""
    parts = path.relative_to(ROOT).parts
    if len(parts) > 2 and parts[0] in DIVIDED:
        return "/".join(parts[:2])
    return parts[0].removesuffix(".py")


def _imported(path: Path) -> set[str]:
    """The rooms that a module imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where they point"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found |= {_room(_file(name)) for name in names if name.startswith("fedlog.")} - {"__init__"}
    return found


def _file(name: str) -> Path:
    """The module that a dotted name lies in, as a path: the longest part of the name that is a file or a folder."""
    parts = name.split(".")[1:]
    for end in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:end])
        if path.is_dir():
            return path / "__init__.py"
        if path.with_suffix(".py").exists():
            return path.with_suffix(".py")
    return ROOT / "__init__.py"


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(ROOT)) for path in MODULES])
def test_imports_point_one_way(path: Path) -> None:
    here = _room(path)
    for there in _imported(path) - {here}:
        assert LEVEL[there] < LEVEL[here], f"{here} imports {there}"
        packages = {here.partition("/")[0], there.partition("/")[0]}
        assert packages not in APART, f"{here} imports {there}"


def test_every_module_has_a_room() -> None:
    rooms = {_room(path) for path in MODULES} - {"flower", "experiments"}  # these have an __init__ alone
    assert rooms == LEVEL.keys()
    assert len(MODULES) > 60


def test_the_parser_sees_every_form_of_import(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text(
        "import fedlog.wire.codec\nfrom fedlog import core, __version__\n"
        "def f():\n    from fedlog.engine.training import loop\nif 0:\n    import fedlog.engine.protocol.server as d\n"
        "from fedlog.flower.site import client_app\nfrom fedlog.engine import clients\n"
    )
    assert _imported(source) == {"wire", "core", "engine/training", "engine/protocol", "flower/site", "engine"}
