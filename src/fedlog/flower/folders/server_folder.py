"""The operator's folder: certificates, the schema, the app, registered sites, runs and logs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedlog.data.schema import quote_toml
from fedlog.errors import InputError
from fedlog.files.durable import write_file
from fedlog.files.lock import lock_folder
from fedlog.files.toml import read_toml
from fedlog.flower.folders.certificates import CertificateFiles

# The name of the connection in Flower's own configuration file, as in `flwr run DIR/app federation`.
CONNECTION = "federation"


@dataclass(frozen=True)
class ServerConfig:
    """The settings that the operator gave to `fedlog federate init`."""

    hosts: tuple[str, ...]  # the names in the certificate; the first is what the sites are told
    listen: str
    port: int


@dataclass(frozen=True)
class ServerFolder:
    """The paths in the operator's folder."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The file with the settings of `init`."""
        return self.path / "federation.toml"

    @property
    def schema_file(self) -> Path:
        """The schema, which goes to every site."""
        return self.path / "schema.toml"

    @property
    def certificates(self) -> CertificateFiles:
        """The certificates of the authority and of the server."""
        return CertificateFiles.under(self.path / "certificates")

    @property
    def flower_home(self) -> Path:
        """FLWR_HOME of the SuperLink and of the `flwr` command."""
        return self.path / "flower"

    @property
    def database(self) -> Path:
        """The SuperLink's database: registered keys, runs and messages under way."""
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
        """The log files of Flower's programs."""
        return self.path / "logs"

    @property
    def event_log(self) -> Path:
        """What happened, one JSON object a line."""
        return self.logs / "events.jsonl"

    @property
    def traffic_file(self) -> Path:
        """What the gate has counted since it was started, by kind of call."""
        return self.logs / "traffic.json"

    @property
    def presence_file(self) -> Path:
        """Who is connected, as the gate wrote it a few seconds ago."""
        return self.logs / "presence.json"

    def write_config(self, config: ServerConfig) -> None:
        """Write the settings of `init`."""
        hosts = ", ".join(quote_toml(host) for host in config.hosts)
        text = f"hosts = [{hosts}]\nlisten = {quote_toml(config.listen)}\nport = {config.port}\n"
        write_file(self.config_file, text)

    def read_config(self) -> ServerConfig:
        """The settings of `init`; an InputError if this is not a server's folder."""
        stored = read_toml(self.config_file, "the settings of a federation", "`fedlog federate init` makes them")
        try:
            return ServerConfig(tuple(map(str, stored["hosts"])), str(stored["listen"]), int(stored["port"]))
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"expected hosts, listen and port in {self.config_file}, found: {sorted(stored)}"
            ) from None

    def write_connection(self, port: int) -> None:
        """Write the connection file from which `flwr` learns the SuperLink's port."""
        self.flower_home.mkdir(parents=True, exist_ok=True)
        authority = str(self.certificates.authority.resolve())
        write_file(
            self.flower_home / "config.toml",
            f"[superlink]\ndefault = {quote_toml(CONNECTION)}\n\n[superlink.{CONNECTION}]\n"
            f'address = "127.0.0.1:{port}"\nroot-certificates = {quote_toml(authority)}\n',
        )

    def remember_site(self, name: str, node_id: str, public_key: str) -> None:
        """Store a site's node number under its name, since Flower lists numbers only."""
        self.sites.mkdir(parents=True, exist_ok=True)
        write_file(self.sites / f"{name}.pub", public_key.strip() + "\n")
        with lock_folder(self.sites):  # two keys may be registered at the same time
            self._write_known({**self.read_known_sites(), name: node_id})

    def forget_site(self, name: str) -> None:
        """Drop a site's public key and number."""
        (self.sites / f"{name}.pub").unlink(missing_ok=True)
        with lock_folder(self.sites):  # two keys may be registered at the same time
            self._write_known({known: node for known, node in self.read_known_sites().items() if known != name})

    def _write_known(self, known: dict[str, str]) -> None:
        write_file(self.sites / "nodes.json", json.dumps(known, indent=1, sort_keys=True) + "\n")

    def read_known_sites(self) -> dict[str, str]:
        """Site name -> Flower's node number."""
        path = self.sites / "nodes.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}
