"""The server's folder: certificates, the schema, the Flower app for `flwr run`, registered sites, runs and logs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from fedlog.errors import InputError
from fedlog.files.durable import write_file
from fedlog.files.json_text import read_json, write_json
from fedlog.files.lock import lock_folder
from fedlog.files.names import did_you_mean
from fedlog.files.toml import format_toml, format_toml_value, read_toml
from fedlog.flower.folders.folder import Folder, SubPath
from fedlog.flower.folders.keys import CertificateFolder
from fedlog.settings.fields import read_dataclass

# The name of the connection in Flower's own configuration file, as in `flwr run DIR/app federation`.
CONNECTION = "federation"


@dataclass(frozen=True)
class ServerConfig:
    """The settings that the operator gave to `fedlog federate init`."""

    hosts: tuple[str, ...]  # the host names in the certificate; the first one is shown to the sites
    listen: str
    port: int


@dataclass(frozen=True)
class ServerFolder(Folder):
    """The server's folder: settings, certificates, registered sites, runs and logs."""

    config_file = SubPath("federation.toml")  # the settings of `init`
    database = SubPath("superlink.db")  # of the SuperLink: registered keys, runs and messages under way
    app = SubPath("app")  # the Flower app that `flwr run` starts
    sites = SubPath("sites")  # public keys by site name
    runs = SubPath("runs")  # a folder for each run: checkpoints and reports
    traffic_file = SubPath("logs", "traffic.json")  # calls and bytes by kind of call, since the gate was started
    presence_file = SubPath("logs", "presence.json")  # who is connected, as the gate wrote it a few seconds ago

    @property
    def certificates(self) -> CertificateFolder:
        """The folder with the certificates and private keys of the authority and of the server."""
        return CertificateFolder(self.path / "certificates")

    def write_config(self, config: ServerConfig) -> None:
        """Store the settings that the operator gave to `fedlog federate init`."""
        write_file(self.config_file, format_toml(asdict(config)))

    def read_config(self) -> ServerConfig:
        """Read the settings that `fedlog federate init` stored; raise InputError if this is no server's folder."""
        stored = read_toml(self.config_file, "the settings of a federation", "`fedlog federate init` makes them")
        return read_dataclass(ServerConfig, stored, f"the settings of a federation in {self.config_file}")

    def write_flwr_config(self, port: int) -> None:
        """Write the file in which the program `flwr` finds the SuperLink's address and certificate."""
        self.flower_home.mkdir(parents=True, exist_ok=True)
        authority = str(self.certificates.authority.resolve())
        write_file(
            self.flower_home / "config.toml",
            f"[superlink]\ndefault = {format_toml_value(CONNECTION)}\n\n[superlink.{CONNECTION}]\n"
            f'address = "127.0.0.1:{port}"\nroot-certificates = {format_toml_value(authority)}\n',
        )

    def add_registered_site(self, name: str, node_id: str, public_key: str) -> None:
        """Store a site's public key and Flower node number under the site's name; Flower lists sites without names."""
        self.sites.mkdir(parents=True, exist_ok=True)
        write_file(self.sites / f"{name}.pub", public_key.strip() + "\n")
        with lock_folder(self.sites):  # two keys may be registered at the same time
            self._write_registered_sites({**self.read_registered_sites(), name: node_id})

    def remove_registered_site(self, name: str) -> None:
        """Remove a site's public key and its Flower node number from the folder."""
        (self.sites / f"{name}.pub").unlink(missing_ok=True)
        with lock_folder(self.sites):  # two keys may be registered at the same time
            self._write_registered_sites(
                {site: node for site, node in self.read_registered_sites().items() if site != name}
            )

    def find_node_number(self, site: str) -> str:
        """Return the Flower node number of a site; raise InputError if no site of this name is registered."""
        registered = self.read_registered_sites()
        if site not in registered:
            names = ", ".join(sorted(registered)) or "(none)"
            raise InputError(
                f"expected one of the registered sites {names}, found: {site}",
                hint=did_you_mean(site, registered, "`fedlog federate register` adds a site"),
            )
        return registered[site]

    def _write_registered_sites(self, registered: dict[str, str]) -> None:
        write_json(self.sites / "nodes.json", dict(sorted(registered.items())))

    def read_registered_sites(self) -> dict[str, str]:
        """Read the registered sites, as name -> Flower node number."""
        return dict(read_json(self.sites / "nodes.json", {}))


PATIENCE_SECONDS = 30.0


def erase_deleted_messages(database: Path) -> str | None:
    """Erase the messages that Flower has deleted from its database file; return None, or the reason why that failed.

    SQLite keeps deleted content in free pages and in its write-ahead log. In runs with central noise, the messages hold
    exact statistics of sites, and a backup of the file would still contain them. The SuperLink may be running: SQLite's
    locks make the two processes wait for each other.
    """
    if not database.exists():
        return None
    try:
        with closing(sqlite3.connect(database, timeout=PATIENCE_SECONDS, isolation_level=None)) as connection:
            connection.execute("VACUUM")
            # Empty the write-ahead log too: it holds every page that was written since the last checkpoint.
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        return f"{type(error).__name__}: {error}"
    return "its write-ahead log is in use" if busy else None
