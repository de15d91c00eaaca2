"""A whole federation in one place: three hospitals with real records, certificates, keys, processes, one report.

The records are scikit-learn's copy of the Wisconsin breast-cancer table, dealt out to three sites of unequal size. All
that a real federation keeps apart, the server's folder and each site's, lies in one folder here, and the demo says so.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from sklearn.datasets import load_breast_cancer

from fedlog.core.keys import Key
from fedlog.data.schema import Feature, Kind, Schema, dump_schema
from fedlog.flower.folders import ServerConfig, ServerFolder, SiteConfig, SiteFolder
from fedlog.flower.plan import Plan
from fedlog.flower.processes import free_port
from fedlog.flower.relay import counting_relay
from fedlog.flower.run_folder import Terms
from fedlog.flower.run_side import run_federation
from fedlog.flower.server_side import Say, create_server, register, running_server
from fedlog.flower.site_data import check_site
from fedlog.flower.site_side import create_site, running_site

# Far more than a round takes on an idle machine; a busy one should still come to an end.
DEADLINE_SECONDS = 240.0


@dataclass(frozen=True)
class DemoSite:
    """One of the three: how many records it has, and the body it chose."""

    records: int
    body: str


SITES: Mapping[str, DemoSite] = {
    "east": DemoSite(60, "mlp:32"),
    "north": DemoSite(120, "mlp:64,32"),
    "south": DemoSite(240, "mlp:128,64,32"),
}


def write_tables(folder: Path, seed: int) -> dict[str, Path]:
    """Each site's table as a CSV file."""
    bunch = load_breast_cancer()
    names = [str(name).replace(" ", "_") for name in bunch.feature_names]
    frame = pl.DataFrame(
        {name: bunch.data[:, at] for at, name in enumerate(names)}
        | {"diagnosis": [str(bunch.target_names[label]) for label in bunch.target]}
    )
    order = Key(seed).child("demo").numpy().permutation(frame.height)
    paths, start = {}, 0
    folder.mkdir(parents=True, exist_ok=True)
    for name, site in SITES.items():
        paths[name] = folder / f"{name}.csv"
        frame[order[start : start + site.records].tolist()].write_csv(paths[name])
        start += site.records
    return paths


def demo_schema() -> Schema:
    """What the three sites have agreed on."""
    bunch = load_breast_cancer()
    features = tuple(Feature(str(name).replace(" ", "_"), Kind.NUMERIC) for name in bunch.feature_names)
    return Schema("diagnosis", tuple(map(str, bunch.target_names)), features)


def run_demo(root: Path, rounds: int, seed: int, say: Say) -> dict[str, Any]:
    """The report: sites, rounds, bits, wire bytes and seconds; every process has ended when it comes back."""
    start = time.monotonic()
    say(f"everything in one place, on the loopback alone: {root}")
    say("in a real federation the server and each site have a machine of their own; see docs/deploy.md")
    server, sites = _made(root, seed)
    with ExitStack() as stack:
        stack.enter_context(running_server(server, say))
        port, traffic = stack.enter_context(counting_relay(server.read_config().port))
        for name, folder in sites.items():
            # What crosses is counted on the way: the sites reach the server through a relay.
            config = folder.read_config()
            folder.write_config(SiteConfig(name, f"127.0.0.1:{port}", config.data, config.body))
            say(check_site(folder, folder.read_config()))
            register(server, name, folder.public_key.read_text(), say)
            stack.enter_context(running_site(folder, say))
        report = run_federation(
            server, Plan("demo", rounds=rounds, seed=seed), Terms(len(sites), DEADLINE_SECONDS), say
        )
        wire_bytes = traffic.up + traffic.down
    return {
        "sites": [
            {key: site[key] for key in ("name", "body", "accuracy", "local_only_accuracy", "kept", "test_records")}
            for site in report["sites"]
        ],
        "rounds": report["rounds"],
        "bits_up": report["bits_up"],
        "bits_down": report["bits_down"],
        "wire_bytes": wire_bytes,
        "seconds": round(time.monotonic() - start, 1),
        "folder": str(root),
    }


def _made(root: Path, seed: int) -> tuple[ServerFolder, dict[str, SiteFolder]]:
    """The folders of the server and of the sites, which join with keys of their own."""
    tables = write_tables(root / "tables", seed)
    schema = root / "schema.toml"
    schema.write_text(dump_schema(demo_schema()))
    server = ServerFolder(root / "server")
    port = free_port()
    create_server(server, ServerConfig(("127.0.0.1",), "127.0.0.1", port), schema, dt.datetime.now(dt.UTC))
    sites = {}
    for name, site in SITES.items():
        folder = SiteFolder(root / name)
        create_site(folder, SiteConfig(name, f"127.0.0.1:{port}"), server.certificates.authority, schema)
        folder.choose(str(tables[name]), site.body)
        sites[name] = folder
    return server, sites
