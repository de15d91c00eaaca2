"""A whole federation in one place: three offices with real records, certificates, keys, processes, one report.

The records are scikit-learn's copy of the handwritten digits of the UCI repository (43 people, 8x8 grey values), dealt
out so that the offices see different shares of each digit. Half of every office's rows are test rows. All that a real
federation keeps apart, the server's folder and each site's, lies in one folder here, and the demo says so.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import torch
from sklearn.datasets import load_digits

from fedlog.core.keys import Key
from fedlog.data.partition import by_dirichlet
from fedlog.data.schema import Feature, Kind, Schema, dump_schema
from fedlog.flower.folders import ServerConfig, ServerFolder, SiteConfig, SiteFolder
from fedlog.flower.plan import Plan
from fedlog.flower.processes import free_port, stop_together
from fedlog.flower.relay import counting_relay
from fedlog.flower.run_folder import Terms
from fedlog.flower.run_side import run_federation
from fedlog.flower.server_side import Say, create_server, register, running_server
from fedlog.flower.site_data import check_site
from fedlog.flower.site_side import create_site, running_site

# Far more than a round takes on an idle machine; a busy one should still come to an end.
DEADLINE_SECONDS = 240.0
# The three sites, with the body that each of them chose.
SITES: Mapping[str, str] = {"east": "mlp:32", "north": "mlp:64,32", "south": "mlp:128,64,32"}
PIXELS = tuple(f"row{row}_column{column}" for row in range(8) for column in range(8))
# Unequal shares of each digit. In the simulator the accuracy on validation rows rises for four rounds and stays there.
ALPHA, HOLD_OUT = 0.5, "0.2,0.5"


def write_tables(folder: Path, seed: int) -> dict[str, Path]:
    """Each site's table as a CSV file."""
    bunch = load_digits()
    labels = torch.from_numpy(bunch.target)
    columns = {name: bunch.data[:, at] for at, name in enumerate(PIXELS)}
    frame = pl.DataFrame(columns | {"digit": list(map(str, bunch.target))})
    # A deal has two pools with equal proportions; the sites split their rows themselves, so one of them is enough.
    dealt = by_dirichlet(labels, labels, clients=len(SITES), alpha=ALPHA, n_class=10, key=Key(seed).child("demo"))
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name, rows in zip(SITES, dealt.train, strict=True):
        paths[name] = folder / f"{name}.csv"
        frame[rows.tolist()].write_csv(paths[name])
    return paths


def demo_schema() -> Schema:
    """What the three sites have agreed on."""
    return Schema("digit", tuple(map(str, range(10))), tuple(Feature(name, Kind.NUMERIC) for name in PIXELS))


def run_demo(root: Path, rounds: int, seed: int, say: Say) -> dict[str, Any]:
    """The report: sites, rounds, bits, wire bytes and seconds; every process has ended when it comes back."""
    start = time.monotonic()
    say(f"everything in one place, on the loopback alone: {root}")
    say("in a real federation the server and each site have a machine of their own; see docs/deploy.md")
    server, sites = _made(root, seed)
    with ExitStack() as stack:
        stack.enter_context(running_server(server, say))
        port, traffic = stack.enter_context(counting_relay(server.read_config().port))
        for folder in sites.values():
            # What crosses is counted on the way: the sites reach the server through a relay.
            config = replace(folder.read_config(), server=f"127.0.0.1:{port}")
            folder.write_config(config)
            say(check_site(folder, config))
        register_together(server, sites, say)
        running = [stack.enter_context(running_site(folder, say)) for folder in sites.values()]
        plan = Plan("demo", rounds=rounds, seed=seed)
        report = run_federation(server, plan, Terms(len(sites), DEADLINE_SECONDS), say)
        wire_bytes = traffic.up + traffic.down
        stop_together(*running)
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


def register_together(server: ServerFolder, sites: Mapping[str, SiteFolder], say: Say) -> None:
    """Register all keys; each takes a program of Flower, and these need not wait for each other."""
    with ThreadPoolExecutor(len(sites)) as pool:
        list(pool.map(lambda name: register(server, name, sites[name].public_key.read_text(), say), sites))


def _made(root: Path, seed: int) -> tuple[ServerFolder, dict[str, SiteFolder]]:
    """The folders of the server and of the sites, which join with keys of their own."""
    tables = write_tables(root / "tables", seed)
    schema = root / "schema.toml"
    schema.write_text(dump_schema(demo_schema()))
    server = ServerFolder(root / "server")
    port = free_port()
    create_server(server, ServerConfig(("127.0.0.1",), "127.0.0.1", port), schema, dt.datetime.now(dt.UTC))
    sites = {}
    for name, body in SITES.items():
        folder = SiteFolder(root / name)
        create_site(folder, SiteConfig(name, f"127.0.0.1:{port}"), server.certificates.authority, schema)
        folder.choose(str(tables[name]), body, HOLD_OUT)
        sites[name] = folder
    return server, sites
