"""Measure the seconds of a round over Flower on one machine by number of sites, with Flower's pauses and with ours.

    python -m benchmarks.round_time --out results/federation/round-time.json

For each number of sites a server and its sites run as real processes on the loopback, once with the SuperNode as Flower
has it and once with the pauses of `fedlog.flower.site.supernode`, one after the other, in pairs. The sites share the
handwritten digits of `fedlog federate demo`. All share the cores of one machine, so that with many sites the figures
tell of the machine rather than of a federation; the load beside it is in the record, and what each kind of program took
of the processors.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from benchmarks.processor_time import count_processor_time
from fedlog.flower.folders.folder import Folder, read_events
from fedlog.flower.folders.site_folder import SiteConfig, SiteFolder
from fedlog.flower.ops import site as site_side
from fedlog.flower.ops.demo import make_table_schema, write_site_tables
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite
from fedlog.flower.ops.processes import Command, find_program
from fedlog.flower.protocol.plan import Plan

BODY, EPOCHS = "mlp:32", 1


def deal(root: Path, sites: int) -> dict[str, LocalSite]:
    """Deal the rows of the digits to the sites' tables in turn; return the sites."""
    rows = pl.concat([pl.read_csv(path) for path in write_site_tables(root / "tables", seed=0).values()])
    dealt = {}
    for at in range(sites):
        path = root / f"site-{at + 1:02}.csv"
        rows[at::sites].write_csv(path)
        dealt[path.stem] = LocalSite(path, BODY)
    return dealt


def find_events(folder: Folder, run: str, event: str) -> list[dict[str, Any]]:
    """The events of one kind in a run, from the log of a server's or a site's folder."""
    return [each for each in read_events(folder.event_log) if each["event"] == event and each["run"] == run]


@contextmanager
def use_flowers_pauses(use: bool) -> Iterator[None]:
    """Inside the block, start SuperNodes with Flower's pauses if `use` is true."""
    ours = site_side.make_supernode_command

    def flowers(folder: SiteFolder, config: SiteConfig, port: int) -> Command:
        command = ours(folder, config, port)
        return replace(command, arguments=(find_program("flower-supernode"), *command.arguments[3:]))

    if use:
        site_side.make_supernode_command = flowers
    try:
        yield
    finally:
        site_side.make_supernode_command = ours


def measure(sites: int, rounds: int, flower: bool) -> dict[str, Any]:
    """The rounds of one run: seconds, processor time by kind of program, calls at the gate and bytes."""
    with tempfile.TemporaryDirectory(prefix="fedlog-rounds-") as name, use_flowers_pauses(flower):
        federation = LocalFederation.create(Path(name), make_table_schema(), deal(Path(name), sites))
        plan = Plan("rounds", rounds=rounds, options={"epochs": EPOCHS})
        with count_processor_time() as counted:
            outcome = federation.run(plan, lambda line: None)
        ends = [event["time"] for event in find_events(federation.server, "rounds", "round")]
        first, last = (dt.datetime.fromisoformat(ends[at]).timestamp() for at in (0, -1))
        spent = {kind: round(each / max(1, rounds - 1), 3) for kind, each in counted.between(first, last).items()}
        seconds = [event["seconds"] for event in find_events(federation.server, "rounds", "round")]
        worked = [event for site in federation.sites.values() for event in find_events(site, "rounds", "worked")]
        work = [event["work_seconds"] for event in worked]
        calls = json.loads(federation.server.traffic_file.read_text())
    polls = calls["pull-messages"]
    return {
        "sites": sites,
        "pauses": "flower" if flower else "fedlog",
        "round_seconds": seconds,
        "round_seconds_median": median(seconds),
        "site_work_seconds_median": median(work),
        "polls": polls["count"],
        "polls_a_site_and_round": round(polls["count"] / sites / rounds, 1),
        "poll_bytes": polls["bytes_up"] + polls["bytes_down"],
        "processor_seconds_a_round": spent,  # of all rounds but the first
        "wire_bytes": outcome.wire_bytes_up + outcome.wire_bytes_down,
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure every number of sites, both ways in turn, and write the record after each pair."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--sites", type=int, nargs="*", default=(3, 8, 20), metavar="N")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=1, help="pairs for each number of sites")
    parser.add_argument("--only", choices=("flower", "fedlog"), help="one kind of pauses instead of both in turn")
    args = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    found: list[dict[str, Any]] = []
    for sites in args.sites:
        for repeat in range(args.repeats):
            # First the one, then the other: the load of the machine drifts.
            both = (True, False) if repeat % 2 == 0 else (False, True)
            for flower in both if args.only is None else (args.only == "flower",):
                start = time.monotonic()
                found.append(measure(sites, args.rounds, flower) | {"seconds": round(time.monotonic() - start, 1)})
                print(json.dumps(found[-1]), file=sys.stderr, flush=True)
            record = {
                "command": f"python -m benchmarks.round_time {' '.join(sys.argv[1:])}",
                "commit": commit,
                "cores": os.cpu_count(),
                "rounds": args.rounds,
                "runs": found,
            }
            args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
