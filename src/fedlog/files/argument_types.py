"""Check plain arguments of public functions by their annotations, so that an error names the argument."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import ParamSpec, TypeVar

from fedlog.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")

# The types that are checked, by their name in an annotation, and how an error describes them.
_CHECKED: dict[str, tuple[type, str]] = {
    "int": (Integral, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
    "str": (str, "a text"),
    "Path": (Path, "a path"),
    "Sequence": (Iterable, "a list"),
    "Iterable": (Iterable, "a list"),
    "Mapping": (Mapping, "a dict"),
    "None": (type(None), "None"),
}
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")


def check_argument_types(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise InputError for an argument that is not of one of its annotated types.

    An argument is checked if all types of its annotation are in `_CHECKED`; the entries of a list or a dict are not
    checked. A required dict is not checked at all, because it holds data that the function checks itself.
    """
    parameters = inspect.signature(function).parameters
    expected = {
        name: _list_checked_types(str(each.annotation))
        for name, each in parameters.items()
        if not (each.default is each.empty and str(each.annotation).startswith("Mapping"))
    }

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name, value in (*zip(parameters, args, strict=False), *kwargs.items()):
            types = expected.get(name, [])
            if types and not isinstance(value, tuple(each for each, _ in types)):
                words = " or ".join(dict.fromkeys(text for _, text in types))
                raise InputError(
                    f"argument {name} must be {words}, found: {value!r:.80} ({type(value).__name__})",
                    hint=f"help(fedlog.{function.__qualname__}) explains the arguments",
                )
        return function(*args, **kwargs)

    return checked


def _list_checked_types(annotation: str) -> list[tuple[type, str]]:
    """List the types of an annotation such as `str | Path | None`; [] if it has a type that is not checked."""
    shorter = _IN_BRACKETS.sub("", annotation)
    while shorter != annotation:
        annotation, shorter = shorter, _IN_BRACKETS.sub("", shorter)
    names = annotation.split(" | ")
    return [_CHECKED[name] for name in names] if all(name in _CHECKED for name in names) else []
