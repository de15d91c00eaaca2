"""Find the settings in which a run differs from the defaults, and format the command that repeats the run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from fedlog.algorithms import registry
from fedlog.data.catalog import DEFAULTS
from fedlog.data.data_spec import SITES
from fedlog.errors import InputError
from fedlog.settings.fields import InDigest, find_setting_info
from fedlog.settings.presets import apply_recipe, find_preset
from fedlog.settings.resolve import resolve
from fedlog.settings.spec import RunSpec, convert_spec_to_json

# These are not part of a run's digest, but a repeated run needs them: they say where to find records and parameters.
NEEDED = ("label", "schema", "site_column", "body_file")


@dataclass(frozen=True)
class SettingDifference:
    """A setting whose value in a run is not the default: its name, the run's value and the default."""

    name: str
    value: Any
    default: Any
    is_option: bool = False  # whether it is an option of the method

    @property
    def text(self) -> str:
        """The run's value as it is shown to users."""
        return describe_value(self.value)

    @property
    def default_text(self) -> str:
        """The default as it is shown to users."""
        return describe_value(self.default)


def describe_value(value: Any) -> str:
    """Return a setting's value as it is shown to users: None and empty lists as "not set"."""
    if value is None or value == []:
        return "not set"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return str(value) if isinstance(value, str) else json.dumps(value)


def find_differences(spec: RunSpec) -> list[SettingDifference]:
    """Find the settings of a resolved run that differ from the defaults for its data set and method."""
    own, usual = convert_spec_to_json(spec), convert_spec_to_json(_make_default_run(spec))
    found = []
    for entry in fields(RunSpec):
        name, known = entry.name, find_setting_info(entry)
        if name in ("data", "method", "options") or not known.flag:
            continue
        if known.in_digest is InDigest.NEVER and name not in NEEDED:
            continue
        if own[name] is not None and own[name] != usual[name]:
            found.append(SettingDifference(name, own[name], usual[name]))
    options = usual["options"]
    found += [
        SettingDifference(name, value, options.get(name), is_option=True)
        for name, value in own["options"].items()
        if value is not None and value != options.get(name)
    ]
    return found


def describe_changed_settings(earlier: RunSpec, later: RunSpec) -> str:
    """Say which settings make `later` another experiment than `earlier`, with both values of each."""
    before, after = earlier.list_digested_values(), later.list_digested_values()
    for values in (before, after):
        options = values.pop("options", {})
        values.update(options if earlier.method == later.method else {})
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    words = {"data_sha256": "other records", "body_file_sha256": "another body file"}
    return ", ".join(
        words.get(name) or f"{name} {describe_value(after.get(name))} instead of {describe_value(before.get(name))}"
        for name in changed
    )


def _make_default_run(spec: RunSpec) -> RunSpec:
    """Make the run that `fedlog run` would make if only this data set and method were given."""
    bare = apply_recipe(RunSpec(data=spec.data, method=spec.method), given=())
    try:
        return resolve(bare).spec
    except InputError:  # for example a user's own method that cannot be imported here
        usual = find_preset(spec.data)
        options = usual.find_options(spec.method) if spec.method in registry.METHODS else {}
        return RunSpec(data=spec.data, method=spec.method, body=(usual.body,), rounds=usual.rounds, options=options)


def format_repeat_command(spec: RunSpec) -> str:
    """Return the command that repeats a resolved run, or the call of `fedlog.run` for a federation made in Python."""
    found = find_differences(spec)
    if spec.data not in DEFAULTS and not spec.data.startswith(SITES) and ":" not in spec.data:
        settings = "".join(f", {each.name}={each.value!r}" for each in found)
        return f"fedlog.run(federation, {spec.method!r}{settings})"
    return shlex.join(["fedlog", "run", "--data", spec.data, "--method", spec.method, *format_flags(found)])


def format_flags(differences: Sequence[SettingDifference]) -> list[str]:
    """Return the flags and values that set these settings on a command line; a list becomes one flag per value."""
    words = []
    for each in differences:
        if each.is_option:
            words += ["--set", f"{each.name}={_format_flag_value(each.value)}"]
        else:
            values = each.value if isinstance(each.value, list) else [each.value]
            words += [
                word for value in values for word in (f"--{each.name.replace('_', '-')}", _format_flag_value(value))
            ]
    return words


def _format_flag_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
