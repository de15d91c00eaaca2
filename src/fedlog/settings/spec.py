"""A run as its user describes it: flat settings, any of which may be left open, and a digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from fedlog.errors import InputError, prefix_errors
from fedlog.files.json_text import digest_json
from fedlog.files.names import did_you_mean
from fedlog.files.toml import read_toml
from fedlog.settings.data import DataSettings, ModelSettings
from fedlog.settings.execution import Execution
from fedlog.settings.fields import (
    AtLeastOne,
    InDigest,
    Section,
    ShareBelowOne,
    find_setting_info,
    find_setting_types,
    setting,
)
from fedlog.settings.privacy import PrivacySettings, SecureSumSettings
from fedlog.settings.training import Optimiser, RoundSettings


@dataclass(frozen=True)
class RunLengthSettings(Section):
    """The number of rounds, the batch size, and the largest share of unusable uploads with which a round still counts.

    `resolve` fills in what is None.
    """

    rounds: AtLeastOne | None = setting(
        None, "number of rounds (default: the data set's preset, 10 for your own data)", deployed=True, metavar="N"
    )
    batch_size: AtLeastOne | None = setting(
        None, "records in a step (default: the data set's preset, 10 for your own data)", deployed=True, metavar="N"
    )
    refused_share: ShareBelowOne | None = setting(
        None,
        "the share of a round's uploads that may be unusable (not finite, beyond the clip, ...) before the run stops; "
        "their clients are left out of the round and named (default: 0.5; in the simulator without --privacy: 0)",
        deployed=True,
        metavar="F",
    )


@dataclass(frozen=True)
class RunSpec(
    SecureSumSettings,
    PrivacySettings,
    Execution,
    Optimiser,
    RoundSettings,
    RunLengthSettings,
    ModelSettings,
    DataSettings,
):
    """A run as its user describes it. `resolve` fills in the settings that are left open."""

    @property
    def digest(self) -> str:
        """A short digest: resolved specifications have the same digest if and only if they are the same experiment."""
        return digest_json(self.list_digested_values())[:16]

    def list_digested_values(self) -> dict[str, Any]:
        """Return the settings that are in the digest, as JSON values; the method's options are under `options`."""
        values = convert_spec_to_json(self)
        if self.data.startswith("sites:"):
            values["data"] = "sites"  # the folder does not matter: `data_sha256` is the digest of its content
        values["options"] = {name: value for name, value in values["options"].items() if value is not None}
        return {each.name: values[each.name] for each in fields(self) if _is_in_digest(each, values[each.name])}


def _is_in_digest(entry: Field[Any], value: Any) -> bool:
    rule = find_setting_info(entry).in_digest
    if value is None or rule is InDigest.NEVER:
        return False
    return rule is InDigest.ALWAYS or value != entry.default


def list_deployed_settings() -> Iterator[Field[Any]]:
    """List the settings that not only simulated runs have, but also deployed runs (over Flower)."""
    return (entry for entry in fields(RunSpec) if find_setting_info(entry).deployed)


def convert_spec_to_json(spec: RunSpec) -> dict[str, Any]:
    """Return the specification as JSON values."""
    values: dict[str, Any] = msgspec.to_builtins(spec)
    return {**values, "body": list(spec.body)}


def make_spec(values: Mapping[str, Any], where: str, start: RunSpec | None = None) -> RunSpec:
    """Return the specification `start` (default: nothing set) with these values; `where` names the source in errors.

    Raise InputError for an unknown name or a wrong type.
    """
    known = find_setting_types(RunSpec)
    for name in values:
        if name not in known:
            hint = did_you_mean(name, known, f"one of {', '.join(sorted(known))}")
            raise InputError(f"{where}: unknown setting: {name}", hint=hint)
    with prefix_errors(where):
        return replace(start or RunSpec(), **values)


def read_spec_file(path: Path, start: RunSpec | None = None) -> RunSpec:
    """Return the specification `start` (default: nothing set) with the values in a TOML file."""
    return make_spec(read_toml(path, "the configuration"), str(path), start)
