"""Call a user's own function that makes a federation, found by `package.module:function` or an entry point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

from fedlog.data.data_spec import DATA_DEFAULTS, DIVISION, DataSpec, refuse_settings
from fedlog.data.federation import Federation
from fedlog.errors import InputError
from fedlog.files.names import did_you_mean, import_callable

ENTRY_POINT_GROUP = "fedlog.data"


class _WatchedSpec(DataSpec):
    """A specification that records which of its settings were read."""

    def __getattribute__(self, name: str) -> Any:
        if name in DATA_DEFAULTS:
            object.__getattribute__(self, "__dict__").setdefault("_seen", set()).add(name)
        return object.__getattribute__(self, name)


def call_user_function(spec: DataSpec, known: Sequence[str]) -> Federation:
    """Call the user's function that `spec` names and return its federation; refuse settings that it does not read.

    `known` are the names of data sets, for a hint if the name is mistyped.
    """
    watched = _WatchedSpec(**vars(spec))
    federation = _find_user_function(spec.name, known)(watched)
    if not isinstance(federation, Federation):
        found = type(federation).__name__
        raise InputError(
            f"{spec.name}: expected a function that returns a fedlog Federation, found: {found}",
            hint="docs/data.md, under 'A function of your own', shows one",
        )
    seen: set[str] = vars(watched).get("_seen", set())
    unseen = [
        name for name in (*DIVISION, "data_dir", "label", "schema", "site_column", "split_seed") if name not in seen
    ]
    refuse_settings(spec, unseen, "its function does not read them")
    return federation


def _find_user_function(name: str, known: Sequence[str]) -> Callable[[DataSpec], object]:
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        loaded: Callable[[DataSpec], object] = entry.load()
        return loaded
    if ":" not in name:
        others = f"one of: {', '.join(known)}, sites:FOLDER or package.module:function"
        raise InputError(f"unknown data set: {name}", hint=did_you_mean(name, known, others))
    return import_callable(name, "data set", "give package.module:function; is it on PYTHONPATH?")
