"""A site's folder, which never leaves the site: its key, settings, caps, state, models and logs.

The caps are the most that a server can ask of the site, whatever a plan says. They are `[caps]` in `site.toml`. A cap
that is not in the file has its safe default, so deleting a line removes no cap. `fedlog federate caps DIR --remove
NAME` removes it: the file then says "none".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from fedlog.errors import InputError, prefix_errors
from fedlog.files.durable import write_file
from fedlog.files.names import did_you_mean
from fedlog.files.toml import format_toml, read_toml
from fedlog.flower.folders.folder import Folder, SubPath
from fedlog.models.body_files import use_absolute_path
from fedlog.privacy.release_log import FILE_NAME
from fedlog.settings.fields import Section, find_setting_types
from fedlog.settings.training import HeadRows

DEFAULT_PORT = 8443
NONE = "none"
SET_CAPS = "`fedlog federate caps DIR --rounds 100` sets a cap, `--remove rounds` removes it"
Count = Annotated[int, Meta(ge=0)]


class AcceptedRuns(StrEnum):
    """Which runs a site takes part in."""

    ANY = "any"
    SECURE = "secure"
    """Runs with a secure sum or with local noise: the server sees no exact statistics of a single site."""
    PRIVATE = "private"
    """Runs with --privacy whose epsilon is small enough to hide something."""


@dataclass(frozen=True)
class RunCaps(Section):
    """The limits that a site sets on what a server may ask of it; None means no limit.

    Three caps limit the numbers of rounds, of epochs, and of new plain runs (in which the server gets exact statistics
    of this site alone). `only` says in which runs the site takes part at all, and `untrained`, whether it sends exact
    statistics of untrained features.
    """

    rounds: Count | None = 1000
    """The most rounds of one run; a step that is asked again with another head counts again."""
    epochs: Count | None = 100
    """The most epochs of one round, over all its training phases."""
    plain_runs: Count | None = 10
    """The most new plain runs in 24 hours: runs without a secure sum and without noise that the site adds, in which the
    server gets exact statistics of this site alone."""
    only: AcceptedRuns = AcceptedRuns.ANY
    untrained: bool = False
    """Whether a plain run may ask for statistics of untrained features, which the server could trace back to rows."""

    def without_cap(self, name: str) -> RunCaps:
        """Return a copy in which the cap of this name is removed."""
        free = {"rounds": None, "epochs": None, "plain-runs": None, "only": AcceptedRuns.ANY, "untrained": True}
        if name not in free:
            raise InputError(
                f"expected the name of one of a site's caps (its limits on runs), found: {name}",
                hint=f"one of {', '.join(free)}",
            )
        return replace(self, **{name.replace("-", "_"): free[name]})  # type: ignore[arg-type]

    def to_toml(self) -> str:
        """Return the TOML table `[caps]` with the caps that differ from their defaults; empty if none does."""
        usual = asdict(RunCaps())
        changed = {name: NONE if cap is None else cap for name, cap in asdict(self).items() if cap != usual[name]}
        return f"[caps]\n{format_toml(changed)}" if changed else ""


def read_caps(stored: object, where: object) -> RunCaps:
    """Read the caps from the table `[caps]` of the file `where`; raise InputError if a cap is unknown or invalid."""
    if not isinstance(stored, Mapping):
        raise InputError(f"{where}: expected a table [caps], found: {stored!r}", hint=SET_CAPS)
    known = find_setting_types(RunCaps)
    if unknown := sorted(set(stored) - set(known)):
        raise InputError(f"{where}: unknown cap in [caps]: {unknown[0]}", hint=f"one of {', '.join(sorted(known))}")
    try:
        return RunCaps(**{name: None if value == NONE else value for name, value in stored.items()})  # type: ignore[arg-type]
    except InputError as error:
        raise InputError(f"{where}, [caps]: {error.message}", hint=error.hint or SET_CAPS) from None


def parse_server_address(text: str) -> str:
    """Parse a server address and return it as HOST:PORT; the port is 8443 if the text has none."""
    host, separator, port = text.rpartition(":")
    if not separator:
        host, port = text, str(DEFAULT_PORT)
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(
            f"expected the server's address as HOST or HOST:PORT, found: {text!r}",
            hint="for example server.example.org:8443, without https://",
        )
    return f"{host}:{port}"


@dataclass(frozen=True)
class SiteConfig(Section):
    """A site's settings, as the commands `fedlog federate join`, `site` and `caps` store them in the site's folder."""

    name: str
    server: str  # HOST:PORT
    data: str | None = None
    body: str | None = None
    hold_out: str | None = None  # the shares of the rows for validation and test, e.g. 0.2,0.5
    privacy: str | None = None  # the privacy it requires of every run, as [UNIT:]TRUST:EPSILON:DELTA
    world: HeadRows | None = None  # closed: the site meets only the classes that are in its training rows
    caps: RunCaps = field(default_factory=RunCaps)


@dataclass(frozen=True)
class SiteFolder(Folder):
    """A site's folder: settings, keys, the state of its runs, models and logs."""

    config_file = SubPath("site.toml")
    authority = SubPath("ca.crt")  # the certificate that proves to the site who the server is
    private_key = SubPath("site.key")
    public_key = SubPath("site.pub")  # the operator registers it at the server
    programs = SubPath("programs")  # the first folder on the SuperNode's PATH
    state = SubPath("state")  # a folder for each run, with the site's body and other state between rounds
    release_log = SubPath("state", FILE_NAME)  # of all runs; each private run also has one of its own
    took_part_file = SubPath("took-part")  # written at the first upload: from then on a missing record is a lost one
    models = SubPath("models")  # the finished models, a folder for each run

    def write_config(self, config: SiteConfig) -> None:
        """Write the site's settings to `site.toml`."""
        texts = {key: value for key, value in asdict(config).items() if isinstance(value, str)}
        write_file(self.config_file, format_toml(texts) + config.caps.to_toml())

    def read_config(self) -> SiteConfig:
        """Read the site's settings from `site.toml`; raise InputError if this is not a site's folder."""
        stored = read_toml(self.config_file, "the settings of a site", "`fedlog federate join` makes them")
        if not {"name", "server"} <= set(stored):
            raise InputError(
                f"expected name and server in {self.config_file}, found: {sorted(stored)}",
                hint="`fedlog federate join` writes both; restore the file, or join again with a new folder",
            )
        # A misspelt limit or cap would otherwise be ignored.
        known = find_setting_types(SiteConfig)
        if strange := sorted(set(stored) - set(known)):
            hint = did_you_mean(strange[0], known, f"one of {', '.join(known)}")
            raise InputError(f"{self.config_file}: unknown setting of a site: {strange[0]}", hint=hint)
        with prefix_errors(str(self.config_file)):
            return SiteConfig(**{**stored, "caps": read_caps(stored.get("caps", {}), self.config_file)})

    def store_data_and_body(self, data: str | None, body: str | None, hold_out: str | None = None) -> SiteConfig:
        """Store these settings of the site, and return all its settings; None keeps the stored value."""
        config = self.make_changed_config(data, body, hold_out)
        self.write_config(config)
        return config

    def make_changed_config(
        self, data: str | None, body: str | None, hold_out: str | None = None, world: str | None = None
    ) -> SiteConfig:
        """Return the site's settings with these fields changed, and store nothing; None keeps the stored value.

        Raise InputError if the site then has no data.
        """
        # Absolute paths: the programs of a run start in another folder than the one where the user typed them.
        if data is not None and Path(data).exists():
            data = str(Path(data).resolve())
        body = None if body is None else use_absolute_path(body)
        chosen = {"data": data, "body": body, "hold_out": hold_out, "world": world}
        config = replace(self.read_config(), **{name: value for name, value in chosen.items() if value})  # type: ignore[arg-type]
        if config.data is None:
            raise InputError(
                f"expected data for site {config.name}, found none",
                hint=f"name the data the first time: `fedlog federate site {self.path} --data DATA`",
            )
        return config
