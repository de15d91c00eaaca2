"""A site's folder, which never leaves the site: its key, settings, state, models and logs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from fedlog.errors import InputError
from fedlog.files.durable import write_file
from fedlog.files.names import did_you_mean
from fedlog.files.toml import format_toml, read_toml
from fedlog.flower.folders.caps import Caps, read_caps
from fedlog.flower.folders.folder import Folder, SubPath
from fedlog.models.body_files import use_absolute_path
from fedlog.settings.training import World

DEFAULT_PORT = 8443


def parse_server_address(text: str) -> str:
    """The server's address as HOST:PORT; the port is 8443 if the text has none."""
    host, separator, port = text.rpartition(":")
    if not separator:
        host, port = text, str(DEFAULT_PORT)
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"expected the server's address as HOST or HOST:PORT, found: {text!r}")
    return f"{host}:{port}"


@dataclass(frozen=True)
class SiteConfig:
    """A site's settings: its name, its server, and later its data and its body."""

    name: str
    server: str  # HOST:PORT
    data: str | None = None
    body: str | None = None
    hold_out: str | None = None  # the shares of the rows for validation and test, e.g. 0.2,0.5
    privacy: str | None = None  # the privacy it requires of every run, as [UNIT:]TRUST:EPSILON:DELTA
    world: str | None = None  # "closed": the site meets only the classes that are in its training rows
    caps: Caps = field(default_factory=Caps)


@dataclass(frozen=True)
class SiteFolder(Folder):
    """A site's folder."""

    config_file = SubPath("site.toml")
    authority = SubPath("ca.crt")  # the certificate that proves to the site who the server is
    private_key = SubPath("site.key")
    public_key = SubPath("site.pub")  # the operator registers it at the server
    programs = SubPath("programs")  # the first folder on the SuperNode's PATH
    state = SubPath("state")  # a folder for each run, with the site's body and other state between rounds
    took_part_file = SubPath("took-part")  # written at the first upload: from then on a missing record is a lost one
    models = SubPath("models")  # the finished models, a folder for each run

    def write_config(self, config: SiteConfig) -> None:
        """Write the site's settings."""
        texts = {key: value for key, value in asdict(config).items() if isinstance(value, str)}
        write_file(self.config_file, format_toml(texts) + config.caps.to_toml())

    def read_config(self) -> SiteConfig:
        """The site's settings; an InputError if this is not a site's folder."""
        stored = read_toml(self.config_file, "the settings of a site", "`fedlog federate join` makes them")
        texts = {key: value for key, value in stored.items() if isinstance(value, str)}
        if not {"name", "server"} <= set(texts):
            raise InputError(f"expected name and server in {self.config_file}, found: {sorted(texts)}")
        # A misspelt limit or cap would otherwise be ignored.
        known = [entry.name for entry in fields(SiteConfig)]
        if strange := sorted(set(stored) - set(known)):
            hint = did_you_mean(strange[0], known, f"one of {', '.join(known)}")
            raise InputError(f"{self.config_file}: unknown setting of a site: {strange[0]}", hint=hint)
        if wrong := sorted(set(stored) - set(texts) - {"caps"}):
            raise InputError(f"{self.config_file}: expected a text for {wrong[0]}, found: {stored[wrong[0]]!r}")
        chosen = {key: texts.get(key) for key in ("data", "body", "hold_out", "privacy", "world")}
        if chosen["world"] not in (None, *World):
            raise InputError(f"{self.config_file}: expected {' or '.join(World)} for world, found: {chosen['world']}")
        caps = read_caps(stored.get("caps", {}), self.config_file)
        return SiteConfig(texts["name"], texts["server"], **chosen, caps=caps)

    def choose_data_and_body(self, data: str | None, body: str | None, hold_out: str | None = None) -> SiteConfig:
        """Change the site's data, body and split, and return its new settings; None leaves a setting as it was."""
        config = self.propose_config(data, body, hold_out)
        self.write_config(config)
        return config

    def propose_config(
        self, data: str | None, body: str | None, hold_out: str | None = None, world: str | None = None
    ) -> SiteConfig:
        """Return the settings with this data, body, split and world; they are not written until they are checked."""
        config = self.read_config()
        # Absolute paths: the programs of a run start in another folder than the one where the user typed them.
        if data is not None and Path(data).exists():
            data = str(Path(data).resolve())
        if body is not None:
            body = use_absolute_path(body)
        config = replace(
            config,
            data=data or config.data,
            body=body or config.body,
            hold_out=hold_out or config.hold_out,
            world=world or config.world,
        )
        if config.data is None:
            raise InputError(f"expected data for site {config.name}, found none", hint="give --data the first time")
        return config
