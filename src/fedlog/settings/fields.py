"""Settings as fields of frozen dataclasses, each with its type, its bounds and its help text.

Flags, TOML files, `config.json` and Flower's settings are all made from these fields and checked in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from fedlog.errors import InputError

Value = TypeVar("Value")

AtLeastOne = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]
ShareBelowOne = Annotated[float, Meta(ge=0, lt=1)]


class InDigest(Enum):
    """Whether a setting is in the digest that tells experiments apart. A setting whose value is None is never in it."""

    ALWAYS = "always"
    UNLESS_DEFAULT = "unless default"
    """For settings added later: the digests of older records, which do not have them, stay the same."""
    NEVER = "never"
    """For settings that say where files are or how a run is computed: they change results by rounding at most."""


@dataclass(frozen=True)
class SettingInfo:
    """A setting's help text, and whether it is in the digest, exists in deployed runs, and has a command-line flag."""

    help: str
    in_digest: InDigest = InDigest.ALWAYS
    deployed: bool = False
    """Whether runs over Flower have the setting too, not only the simulator."""
    flag: bool = True
    """Whether there is a command-line flag for it."""
    metavar: str | None = None
    aliases: tuple[str, ...] = ()


def setting(default: Any, text: str, **more: Any) -> Any:
    """Make a dataclass field with this default and help text; `more` are further fields of `SettingInfo`.

    A default of None means that the setting is not set.
    """
    info = SettingInfo(text, **more)
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"info": info})
    return field(default=default, metadata={"info": info})


late_setting = partial(setting, in_digest=InDigest.UNLESS_DEFAULT, deployed=True)
"""Make a setting that was added later: in a run's digest only if it is not the default, and also for Flower."""

local_setting = partial(setting, in_digest=InDigest.NEVER)
"""Make a setting that is in no digest: it says where files are or how a run is computed."""


def find_setting_info(entry: Field[Any]) -> SettingInfo:
    """Return the `SettingInfo` that `setting` stored in a dataclass field."""
    found: SettingInfo = entry.metadata["info"]
    return found


@dataclass(frozen=True)
class Section:
    """The base class of groups of settings; it checks each value against its type and bounds."""

    def __post_init__(self) -> None:
        kind = type(self)
        hints, defaults = find_setting_types(kind), _convert_defaults(kind)  # type: ignore[arg-type]
        for entry in fields(self):
            value, type_hint = getattr(self, entry.name), hints[entry.name]
            if (
                value is None
                and defaults.get(entry.name) is not None
                and NoneType not in list_accepted_types(type_hint)
            ):
                value = entry.default  # in a file, null and "not set" are the same
            checked = defaults[entry.name] if value is entry.default else _convert_setting(entry, value, type_hint)
            object.__setattr__(self, entry.name, checked)

    def extract_section(self, section: type[Value]) -> Value:
        """Return the settings of one section, as an object of its class; `self` must inherit from that class."""
        names = [entry.name for entry in fields(section)]  # type: ignore[arg-type]
        return section(**{name: getattr(self, name) for name in names})


@cache
def find_setting_types(kind: Any) -> dict[str, Any]:
    """Return name -> type for each setting of a dataclass; a type with bounds is an `Annotated`."""
    hints = get_type_hints(kind, include_extras=True)
    return {entry.name: hints[entry.name] for entry in fields(kind)}


@cache
def _convert_defaults(kind: Any) -> dict[str, Any]:
    """Return name -> default of a section's settings, checked and converted.

    Cached: most settings of a run keep their default, which then need not be converted again.
    """
    hints = find_setting_types(kind)
    given = [entry for entry in fields(kind) if entry.default is not MISSING]
    return {entry.name: _convert_setting(entry, entry.default, hints[entry.name]) for entry in given}


def list_accepted_types(type_hint: Any) -> tuple[Any, ...]:
    """List the types that a type hint accepts: the members of a union, or the type itself, each with its bounds."""
    return get_args(type_hint) if get_origin(type_hint) in (Union, UnionType) else (type_hint,)


def find_value_type(type_hint: Any) -> Any:
    """Return the type that a setting's value has when it is set: the type hint without None and without bounds."""
    kind = next(kind for kind in list_accepted_types(type_hint) if kind is not NoneType)
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def list_choices(type_hint: Any) -> tuple[str, ...]:
    """List the words that a setting accepts; return an empty tuple if the setting is not a choice of words."""
    kind = find_value_type(type_hint)
    if get_origin(kind) is Literal:
        return tuple(str(each) for each in get_args(kind))
    return tuple(each.value for each in kind) if isinstance(kind, type) and issubclass(kind, Enum) else ()


def convert_value(name: str, value: Any, type_hint: Any) -> Any:
    """Convert the value to the setting's type; raise InputError if it does not fit the type or its bounds."""
    if isinstance(value, str) and get_origin(find_value_type(type_hint)) is tuple:
        value = (value,)  # one name stands for a list of one
    try:
        found = msgspec.convert(value, type_hint)
    except msgspec.ValidationError:
        message, expected = _describe_mistake(name, value, type_hint)
        raise InputError(message, hint=expected) from None
    if isinstance(found, float) and not math.isfinite(found):
        raise InputError(f"{name.replace('_', ' ')} must be a finite number, found: {value}")
    return found


def _convert_setting(entry: Field[Any], value: Any, type_hint: Any) -> Any:
    """Convert the value as `convert_value` does; an InputError without a hint gets the setting's help text as hint."""
    try:
        return convert_value(entry.name, value, type_hint)
    except InputError as error:
        if error.hint is None and "info" in entry.metadata:
            raise InputError(error.message, hint=f"{entry.name}: {find_setting_info(entry).help}") from None
        raise


def _describe_mistake(name: str, value: Any, type_hint: Any) -> tuple[str, str | None]:
    """Return the error message about a wrong value, and a hint that lists the accepted words, if there are any."""
    words, kind, known = name.replace("_", " "), find_value_type(type_hint), list_choices(type_hint)
    if known:
        return f"unknown {words}: {value}", f"one of {', '.join(known)}"
    if get_origin(kind) is tuple:
        return f"{name} must be a name or a list of names, found: {value!r}", None
    if get_origin(kind) is not None:
        return f"{name} must be a table of names and values, found: {value!r}", None
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        return f"{name} must be of type {getattr(kind, '__name__', kind)}, found: {value!r}", None
    return f"{words} must be {_describe_bounds(type_hint)}, found: {value}", None


def _describe_bounds(type_hint: Any) -> str:
    bounded = next((kind for kind in list_accepted_types(type_hint) if get_origin(kind) is Annotated), None)
    if bounded is None:  # a whole number too large for a float
        return "a number that fits into 64 bits"
    bounds = next(each for each in get_args(bounded) if isinstance(each, Meta))
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    given = [(word, getattr(bounds, name)) for name, word in words.items()]
    return " and ".join(f"{word} {bound}" for word, bound in given if bound is not None)


def read_dataclass(kind: type[Value], values: object, what: str) -> Value:
    """Make a dataclass from the JSON values of a network message; `what` names these values in errors.

    Raise InputError for a missing or unknown field or a wrong type. Only fields that may be None can be missing.
    """
    hints = find_setting_types(kind)  # type: ignore[arg-type]
    if not isinstance(values, Mapping):
        raise InputError(f"expected {what} as a JSON object, found: {type(values).__name__}")
    needed = {name for name, type_hint in hints.items() if NoneType not in list_accepted_types(type_hint)}
    missing, unknown = needed - set(values), {str(name) for name in set(values) - set(hints)}
    if missing or unknown:
        faults = (("missing", missing), ("unknown", unknown))
        found = "; ".join(f"{word}: {', '.join(sorted(names))[:200]}" for word, names in faults if names)
        raise InputError(f"wrong fields in {what}: {found}")
    read = {}
    for name, value in values.items():
        part = find_value_type(hints[name])
        nested = isinstance(part, type) and hasattr(part, "__dataclass_fields__")
        if nested and not (value is None and name not in needed):
            read[name] = read_dataclass(part, value, f"{name} in {what}")
        else:
            read[name] = convert_value(name, value, hints[name])
    return kind(**read)
