"""The two folders of a federation: the server's, with its operator, and a site's, which never leaves the site."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedlog.data.schema import toml_quoted
from fedlog.errors import InputError
from fedlog.flower.folders.certificates import CertificateFiles
from fedlog.models.frozen import FROZEN

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
DEFAULT_PORT = 8443
# The name of the connection in Flower's own configuration file, as in `flwr run DIR/app federation`.
CONNECTION = "federation"


@dataclass(frozen=True)
class ServerConfig:
    """What the operator decided at `init`."""

    hosts: tuple[str, ...]  # the names in the certificate; the first is what the sites are told
    listen: str
    port: int


@dataclass(frozen=True)
class ServerFolder:
    """Where the operator's things are."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The decisions of `init`."""
        return self.path / "federation.toml"

    @property
    def schema_file(self) -> Path:
        """The schema, which goes to every site."""
        return self.path / "schema.toml"

    @property
    def certificates(self) -> CertificateFiles:
        """The authority's and the server's."""
        return CertificateFiles.under(self.path / "certificates")

    @property
    def flower_home(self) -> Path:
        """FLWR_HOME of the SuperLink and of the `flwr` command."""
        return self.path / "flower"

    @property
    def database(self) -> Path:
        """The SuperLink's: registered keys, runs and messages under way."""
        return self.path / "superlink.db"

    @property
    def app(self) -> Path:
        """The Flower app that `flwr run` sends."""
        return self.path / "app"

    @property
    def sites(self) -> Path:
        """Public keys by site name."""
        return self.path / "sites"

    @property
    def runs(self) -> Path:
        """A folder for each run: checkpoints and reports."""
        return self.path / "runs"

    @property
    def logs(self) -> Path:
        """What the programs said."""
        return self.path / "logs"

    @property
    def traffic_file(self) -> Path:
        """What the gate counted, by kind of call, the last time it ran."""
        return self.logs / "traffic.json"

    def write_config(self, config: ServerConfig) -> None:
        """Write the decisions of `init`."""
        hosts = ", ".join(toml_quoted(host) for host in config.hosts)
        text = f"hosts = [{hosts}]\nlisten = {toml_quoted(config.listen)}\nport = {config.port}\n"
        write_atomically(self.config_file, text)

    def read_config(self) -> ServerConfig:
        """The decisions of `init`; an InputError when this is no server's folder."""
        stored = _read_toml(self.config_file, "fedlog federate init")
        try:
            return ServerConfig(tuple(map(str, stored["hosts"])), str(stored["listen"]), int(stored["port"]))
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"expected hosts, listen and port in {self.config_file}, found: {sorted(stored)}"
            ) from None

    def write_connection(self, port: int) -> None:
        """Tell the `flwr` command where the SuperLink listens on the loopback."""
        self.flower_home.mkdir(parents=True, exist_ok=True)
        authority = str(self.certificates.authority.resolve())
        write_atomically(
            self.flower_home / "config.toml",
            f"[superlink]\ndefault = {toml_quoted(CONNECTION)}\n\n[superlink.{CONNECTION}]\n"
            f'address = "127.0.0.1:{port}"\nroot-certificates = {toml_quoted(authority)}\n',
        )

    def remember_site(self, name: str, node_id: str, public_key: str) -> None:
        """Keep who was registered under which node, since Flower's list shows numbers only."""
        self.sites.mkdir(parents=True, exist_ok=True)
        write_atomically(self.sites / f"{name}.pub", public_key.strip() + "\n")
        with self._sites_locked():
            self._write_known({**self.known_sites(), name: node_id})

    def forget_site(self, name: str) -> None:
        """Drop a site's public key and number."""
        (self.sites / f"{name}.pub").unlink(missing_ok=True)
        with self._sites_locked():
            self._write_known({known: node for known, node in self.known_sites().items() if known != name})

    def _write_known(self, known: dict[str, str]) -> None:
        write_atomically(self.sites / "nodes.json", json.dumps(known, indent=1, sort_keys=True) + "\n")

    @contextmanager
    def _sites_locked(self) -> Iterator[None]:
        """The list of sites for us alone: two keys may be registered at the same time."""
        with (self.sites / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def known_sites(self) -> dict[str, str]:
        """Site name -> Flower's node number."""
        path = self.sites / "nodes.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}


@dataclass(frozen=True)
class SiteConfig:
    """What a site decided: who it is, where its server is, and later its data and its body."""

    name: str
    server: str  # HOST:PORT
    data: str | None = None
    body: str | None = None
    hold_out: str | None = None  # the shares of the rows for validation and test, e.g. 0.2,0.5
    privacy: str | None = None  # what it asks of every run: [UNIT:]TRUST:EPSILON:DELTA


@dataclass(frozen=True)
class SiteFolder:
    """Where a site's things are."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The site's decisions."""
        return self.path / "site.toml"

    @property
    def schema_file(self) -> Path:
        """The schema the federation agreed on."""
        return self.path / "schema.toml"

    @property
    def authority(self) -> Path:
        """The certificate by which the site knows the server."""
        return self.path / "ca.crt"

    @property
    def private_key(self) -> Path:
        """The site's secret."""
        return self.path / "site.key"

    @property
    def public_key(self) -> Path:
        """What the operator registers."""
        return self.path / "site.pub"

    @property
    def flower_home(self) -> Path:
        """FLWR_HOME of the SuperNode."""
        return self.path / "flower"

    @property
    def programs(self) -> Path:
        """The folder that is first on the SuperNode's PATH."""
        return self.path / "programs"

    @property
    def state(self) -> Path:
        """The body and what else the site keeps between rounds, by run."""
        return self.path / "state"

    @property
    def models(self) -> Path:
        """The finished models, a folder for each run."""
        return self.path / "models"

    @property
    def logs(self) -> Path:
        """What the programs said."""
        return self.path / "logs"

    def write_config(self, config: SiteConfig) -> None:
        """Write the site's decisions."""
        lines = [f"{key} = {toml_quoted(value)}" for key, value in asdict(config).items() if value is not None]
        write_atomically(self.config_file, "\n".join(lines) + "\n")

    def read_config(self) -> SiteConfig:
        """The site's decisions; an InputError when this is no site's folder."""
        stored = _read_toml(self.config_file, "fedlog federate join")
        texts = {key: value for key, value in stored.items() if isinstance(value, str)}
        if not {"name", "server"} <= set(texts):
            raise InputError(f"expected name and server in {self.config_file}, found: {sorted(texts)}")
        chosen = (texts.get(key) for key in ("data", "body", "hold_out", "privacy"))
        return SiteConfig(texts["name"], texts["server"], *chosen)

    def choose(self, data: str | None, body: str | None, hold_out: str | None = None) -> SiteConfig:
        """The decisions with this data, body and split, written; what is None stays as it was."""
        config = self.read_config()
        # The apps of a run start in another folder than the person who typed the paths.
        if data is not None and Path(data).exists():
            data = str(Path(data).resolve())
        if body is not None and body.startswith(FROZEN):
            body = FROZEN + str(Path(body.removeprefix(FROZEN)).resolve())
        config = replace(
            config, data=data or config.data, body=body or config.body, hold_out=hold_out or config.hold_out
        )
        if config.data is None:
            raise InputError(f"expected data for site {config.name}, found none", hint="give --data the first time")
        self.write_config(config)
        return config


def site_name(text: str) -> str:
    """The text, when it can name a site in file names, logs and Flower's list."""
    if not NAME.fullmatch(text):
        raise InputError(
            f"expected a name of at most 32 lower-case letters, digits, dots, dashes or underscores, found: {text!r}"
        )
    return text


def server_address(text: str) -> str:
    """HOST:PORT, with the usual port where none is given."""
    host, separator, port = text.rpartition(":")
    if not separator:
        host, port = text, str(DEFAULT_PORT)
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"expected HOST or HOST:PORT, found: {text!r}")
    return f"{host}:{port}"


def write_atomically(path: Path, text: str) -> None:
    """Replace the file as a whole: a reader, or a restart after a crash, sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _read_toml(path: Path, maker: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"expected {path.name} in {path.parent}, found none", hint=f"`{maker}` makes it") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"expected TOML in {path}, found: {error}") from None
