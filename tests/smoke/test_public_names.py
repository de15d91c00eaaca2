"""The public names are those of docs/api.md, each with a docstring that says enough. tests/docs runs its examples."""

from __future__ import annotations

import inspect
import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

import every_public_name
import pytest

import fedlog

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text()
NAMES = tuple(sorted(fedlog.__all__))


def sections() -> dict[str, str]:
    """The page's text on each name."""
    parts = re.split(r"^## `fedlog\.(\w+)`$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_public_names_are_those_of_the_page() -> None:
    assert sorted(sections()) == list(NAMES)
    assert sorted(name for name in dir(fedlog) if not name.startswith("_")) == list(NAMES)
    examples = {name for name, text in sections().items() if "```python" in text}
    assert set(NAMES) - examples == {"FedlogError"}  # its two kinds have one


def _public_functions(name: str) -> list[tuple[str, Any]]:
    """The name itself, or what its class or module lets people call."""
    found = getattr(fedlog, name)
    if inspect.isfunction(found):
        return [(name, found)]
    if inspect.ismodule(found):
        members = {each: getattr(found, each) for each in found.__all__}
        return [(f"{name}.{each}", member) for each, member in members.items() if inspect.isfunction(member)]
    # Those that begin with set_ are scikit-learn's own.
    own = {each: value for each, value in vars(found).items() if not each.startswith(("_", "set_"))}
    calls = {
        each: getattr(found, each) for each, value in own.items() if not isinstance(value, property | cached_property)
    }
    return [(f"{name}.{each}", call) for each, call in calls.items() if inspect.isroutine(call)]


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_says_what_it_does_its_arguments_and_what_comes_back(name: str) -> None:
    assert len((inspect.getdoc(getattr(fedlog, name)) or "").split()) > 5
    for called, function in _public_functions(name):
        said = inspect.getdoc(function) or ""
        parameters = [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]
        assert len(said.split()) > 3, called
        if name in ("Callback",):  # they are called, and return nothing
            assert "Args:" in said, called
            continue
        for parameter in parameters:
            assert re.search(rf"^\s*{parameter}: ", said, re.MULTILINE), f"{called} says nothing of {parameter}"
        if inspect.signature(function).return_annotation not in (None, "None") and parameters:
            assert "Returns:" in said, called


def test_a_typed_program_uses_every_public_name(tmp_path: Path) -> None:
    source = Path(every_public_name.__file__)
    assert set(NAMES) <= set(re.findall(r"fedlog\.(\w+)", source.read_text()))
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert checked["strict"] is True
    assert str(source.relative_to(ROOT)) in checked["files"]
    every_public_name.main(tmp_path)
