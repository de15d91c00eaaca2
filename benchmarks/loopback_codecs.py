"""Measure the bytes of a message over Flower on one machine, with each codec: the payload, and all traffic.

    python -m benchmarks.loopback_codecs --out benchmarks/records/loopback-codecs.json

A server and three sites with the handwritten digits of `fedlog federate demo`, two rounds of FedLog for each way of
sending: a codec, behind a colon that of the way down, and whether broadcasts are differences. A run has a head down and
statistics up for each site and round, and a last head down; what crosses besides (greetings, polling, heartbeats, TLS)
is transport, and most of it depends on the time a run takes rather than on what is sent.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlog.engine.software import list_software_versions
from fedlog.flower.folders.site_folder import RunCaps
from fedlog.flower.ops.demo import HOLD_OUT, SITES, make_table_schema, write_site_tables
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite, RunOutcome
from fedlog.flower.protocol.plan import Plan
from fedlog.settings.training import BroadcastForm
from fedlog.wire.codec import CODECS

WAYS = (*CODECS, "rows+q4:q4:differences")
ROUNDS = 2


def make_plan(way: str) -> Plan:
    """The plan of a run with this way of sending."""
    up, _, rest = way.partition(":")
    down, _, differences = rest.partition(":")
    return Plan(
        re.sub("[^a-z0-9]", "-", way),
        rounds=ROUNDS,
        codec=up,
        codec_down=down or None,
        down=BroadcastForm.DIFFERENCES if differences else BroadcastForm.WHOLE,
    )


def measure(ways: Sequence[str]) -> list[dict[str, Any]]:
    """The payload and the traffic of a run with each way of sending, all with the same processes."""
    with tempfile.TemporaryDirectory(prefix="fedlog-loopback-") as folder:
        root = Path(folder)
        tables = write_site_tables(root / "tables", seed=0)
        sites = {name: LocalSite(tables[name], body, HOLD_OUT) for name, body in SITES.items()}
        federation = LocalFederation.create(root, make_table_schema(), sites)
        for site in federation.sites.values():  # which by themselves begin fewer such runs a day
            site.write_config(replace(site.read_config(), caps=RunCaps(plain_runs=len(ways))))
        outcomes = federation.run_plans([make_plan(way) for way in ways], lambda line: print(line, file=sys.stderr))
    return [describe(way, outcome) for way, outcome in zip(ways, outcomes, strict=True)]


def describe(way: str, outcome: RunOutcome) -> dict[str, Any]:
    """The bytes of each message of a run; the first run also counts messages that are sent when processes start."""
    up, down = len(SITES) * ROUNDS, len(SITES) * (ROUNDS + 1)
    payload_up, payload_down = outcome.report["bits_up"] / 8, outcome.report["bits_down"] / 8
    return {
        "way": way,
        "payload_bytes_a_message_up": round(payload_up / up, 1),
        "payload_bytes_a_message_down": round(payload_down / down, 1),
        "transport_bytes_a_message_up": round((outcome.wire_bytes_up - payload_up) / up),
        "transport_bytes_a_message_down": round((outcome.wire_bytes_down - payload_down) / down),
        "accuracy": [site["accuracy"] for site in outcome.report["sites"]],
    }


def main() -> None:
    """Measure every way and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--ways", nargs="*", default=WAYS, metavar="NAME")
    args = parser.parse_args()
    stored = {"rounds": ROUNDS, "sites": len(SITES), "made_with": list_software_versions(), "ways": measure(args.ways)}
    args.out.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
