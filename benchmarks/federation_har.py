"""Run UCI HAR through Flower: four sites, each a group of people, judged on people whom nobody trained on.

    python -m benchmarks.federation_har --data-dir DATA --out results/federation/har/record.json

The people are grouped as in `fedlog reproduce natural-sites`, seed 0, and the first four of its six sites take part.
Windows of one person overlap, so a site holds out whole people: one for validation, one for test. The simulator then
runs FedLog, FedLog-C, FedAvg and local-only training on the very same rows, with the same bodies and rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.round_time import find_events
from fedlog.algorithms import registry
from fedlog.data.catalog import load_federation
from fedlog.data.data_spec import DataSpec
from fedlog.data.federation import Federation, Records, Shard, check_federation
from fedlog.data.schema import Schema
from fedlog.data.site import Site
from fedlog.engine.clients import make_model_plan
from fedlog.engine.simulate.simulator import Simulation
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite
from fedlog.flower.protocol.plan import Plan
from fedlog.flower.site.data import load_data
from fedlog.models.catalog import make_body
from fedlog.settings.training import RunSettings

SITES = ("site-1", "site-2", "site-3", "site-4")
BODY, BATCH, EPOCHS, LEARNING_RATE = "signal-cnn", 50, 1, 0.001
SIMULATED = ("fedlog", "fedlog-c", "fedavg", "local")


def write_sites(folder: Path, data_dir: Path) -> tuple[Schema, dict[str, LocalSite]]:
    """Write an .npz file with the windows of its people for each of the four sites; return the schema and the sites."""
    federation = load_federation(DataSpec("har", data_dir=data_dir))
    schema = Schema("activity", federation.class_names, (), input_shape=federation.input_shape)
    sites = {}
    for name, shard in zip(SITES, federation.shards, strict=False):
        parts = [federation.train.at(shard.train), federation.test.at(shard.test)]
        np.savez(
            folder / f"{name}.npz",
            inputs=torch.cat([part.inputs for part in parts]).numpy(),
            labels=torch.cat([part.labels for part in parts]).numpy(),
            groups=torch.cat([part.users for part in parts if part.users is not None]).numpy(),
        )
        sites[name] = LocalSite(folder / f"{name}.npz", BODY)
    return schema, sites


def pool_sites(sites: dict[str, Site]) -> Federation:
    """Put the sites' rows into one federation for the simulator, split as each site split them."""
    shards: list[Shard] = []
    train, test = 0, 0
    for name, site in sites.items():
        shard = site.shard
        shards.append(Shard(name, shard.train + train, shard.test + test, shard.validation + train))
        train, test = train + len(site.federation.train), test + len(site.federation.test)
    first = next(iter(sites.values())).federation
    made = Federation(
        name="har",
        n_class=first.n_class,
        input_shape=first.input_shape,
        train=_join_records([site.federation.train for site in sites.values()]),
        test=_join_records([site.federation.test for site in sites.values()]),
        shards=tuple(shards),
        transform=first.transform,
        class_names=first.class_names,
    )
    return check_federation(made)


def _join_records(parts: list[Records]) -> Records:
    return Records(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))


def simulate(method: str, federation: Federation, rounds: int) -> dict[str, Any]:
    """Run a method in the simulator; return the test accuracy of each site after the last round, and the bits."""
    bodies = [make_body(BODY, federation.input_shape)] * len(federation.shards)
    shape = make_model_plan(federation, bodies)
    told = {"epochs": EPOCHS, "learning_rate": LEARNING_RATE}
    algorithm = registry.make_method(method, shape, told)
    start = time.perf_counter()
    # One client at a time, as at a site: another order of sums grows, over hundreds of steps, into another model.
    last = list(
        Simulation(
            algorithm, federation, bodies, shape, Engine(Settings(BATCH), clients_at_once=1), RunSettings(rounds=rounds)
        )
        .start()
        .rounds()
    )
    return {
        "accuracy": dict(zip(SITES, last[-1].accuracy_per_client, strict=True)),
        "accuracy_mean_over_sites": last[-1].accuracy_mean_over_clients,
        "bits_up": sum(record.bits_up for record in last),
        "bits_down": sum(record.bits_down for record in last),
        "seconds": round(time.perf_counter() - start, 1),
    }


def list_people(place: LocalFederation) -> dict[str, Any]:
    """List, for each site and part of its split, the people and the number of their records."""
    told = {}
    for name, folder in place.sites.items():
        site = load_data(folder, folder.read_config())
        shard, federation = site.shard, site.federation
        parts = {
            "training": (federation.train, shard.train),
            "validation": (federation.train, shard.validation),
            "test": (federation.test, shard.test),
        }
        told[name] = {
            part: {"records": len(at), "people": sorted(set(_list_users(records.at(at))))}
            for part, (records, at) in parts.items()
        }
    return told


def _list_users(records: Records) -> list[int]:
    return [] if records.users is None else [int(user) for user in records.users]


def main() -> int:
    """Run the four sites through Flower and the simulator, and write the record."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        place = LocalFederation.create(root, *write_sites(root, chosen.data_dir))
        options = {"epochs": EPOCHS, "learning_rate": LEARNING_RATE}
        plan = Plan("har", rounds=chosen.rounds, options=options, batch_size=BATCH)
        start = time.monotonic()
        outcome = place.run(plan, lambda line: print(line, file=sys.stderr, flush=True))
        seconds = time.monotonic() - start
        federation = pool_sites({name: load_data(folder, folder.read_config()) for name, folder in place.sites.items()})
        record = {
            "command": "python -m benchmarks.federation_har --data-dir DATA --out results/federation/har/record.json",
            "settings": {"body": BODY, "batch_size": BATCH, "rounds": chosen.rounds, **options},
            "people": list_people(place),
            "flower": {
                **outcome.report,
                "wire_bytes_up": outcome.wire_bytes_up,
                "wire_bytes_down": outcome.wire_bytes_down,
                "seconds": round(seconds, 1),
                "calls": json.loads(place.server.traffic_file.read_text()),
                "rounds_seconds": [event["seconds"] for event in find_events(place.server, "har", "round")],
                "sites_seconds": {
                    name: [[e["load_seconds"], e["work_seconds"]] for e in find_events(folder, "har", "worked")]
                    for name, folder in place.sites.items()
                },
            },
            "simulator": {method: simulate(method, federation, chosen.rounds) for method in SIMULATED},
        }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
