"""Command-line flags, made from the settings' fields."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import Field, fields
from typing import Any, get_origin

from fedlog.errors import InputError
from fedlog.settings.data import DataSettings, ModelSettings
from fedlog.settings.execution import Execution
from fedlog.settings.fields import find_setting_info, find_setting_types, find_value_type, list_choices
from fedlog.settings.privacy import PrivacySettings, SecureSumSettings
from fedlog.settings.spec import RunLengthSettings, RunSpec
from fedlog.settings.training import Optimiser, RoundSettings

GROUPS = {
    "data": (DataSettings,),
    "method and training": (ModelSettings, RunLengthSettings, RoundSettings, Optimiser),
    "privacy": (PrivacySettings, SecureSumSettings),
    "execution": (Execution,),
}
NOTES = {"privacy": "docs/privacy.md says what each setting promises, and to whom"}


def add_flags(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Add to the parser a flag for each of these settings, and `--set` for options of the method."""
    for title, sections in GROUPS.items():
        entries = [entry for section in sections for entry in fields(section) if entry.name in names]
        if not entries:
            continue
        group = parser.add_argument_group(title, NOTES.get(title))
        for entry in entries:
            if find_setting_info(entry).flag:
                _add_flag(group, entry)
        if title == "method and training":
            group.add_argument(
                "--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the method"
            )


def _add_flag(group: argparse._ArgumentGroup, entry: Field[Any]) -> None:
    known, type_hint = find_setting_info(entry), find_setting_types(RunSpec)[entry.name]
    arguments: dict[str, Any] = {"help": known.help, "metavar": known.metavar}
    if get_origin(type_hint) is tuple:
        arguments["action"] = "append"
    elif words := list_choices(type_hint):
        arguments["choices"] = words
    else:
        arguments["type"] = find_value_type(type_hint)
    if entry.default not in (None, ()):
        arguments["help"] += f" (default: {entry.default})"
    arguments["help"] = arguments["help"].replace("%", "%%")  # argparse formats help texts with %
    group.add_argument(f"--{entry.name.replace('_', '-')}", *known.aliases, dest=entry.name, **arguments)


def read_given_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were given on the command line; the method's options are under `options`."""
    known = find_setting_types(RunSpec)
    given = {name: value for name, value in vars(args).items() if name in known and value is not None}
    options: dict[str, Any] = dict(_read_option(text) for text in args.set)
    if getattr(args, "personal", False):
        options["personal"] = True
    return {**given, "options": options} if options else given


def _read_option(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise InputError(f"--set needs NAME=VALUE, found: {text}", hint="for example --set alpha=0.01")
    return name.replace("-", "_"), value
