"""Names that a newcomer meets: each class has a name of its own."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import fedlog

ROOT = Path(fedlog.__file__).parent


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert len(places) > 400  # they were found
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
