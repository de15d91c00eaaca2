"""Bytes of a message over Flower on the loopback, with each codec: the payload, and all that crosses.

    python -m benchmarks.loopback_codecs --out benchmarks/records/loopback-codecs.json

A server and three sites with the handwritten digits of `fedlog federate demo`, two rounds of FedLog for each codec. A
run has a head down and statistics up for each site and round, and a last head down; what crosses besides (greetings,
polling, heartbeats, TLS) is transport, and most of it depends on the time a run takes rather than on what is sent.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedlog.flower.ops.demo import HOLD_OUT, SITES, demo_schema, write_tables
from fedlog.flower.ops.local_federation import LocalFederation, LocalSite
from fedlog.flower.protocol.plan import Plan

CODECS = ("f32", "rows", "f16", "q8", "q4", "rows+q8", "rows+q4", "rows+q8+zstd")
ROUNDS = 2


def measure(codec: str) -> dict[str, Any]:
    """What one run costs in payload and on the wire."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedlog-loopback-") as folder:
        root = Path(folder)
        tables = write_tables(root / "tables", seed=0)
        sites = {name: LocalSite(tables[name], body, HOLD_OUT) for name, body in SITES.items()}
        plan = Plan("codecs", rounds=ROUNDS, codec=codec)
        outcome = LocalFederation.make(root, demo_schema(), sites).run(plan, lambda line: None)
    up, down = len(SITES) * ROUNDS, len(SITES) * (ROUNDS + 1)
    payload_up, payload_down = outcome.report["bits_up"] / 8, outcome.report["bits_down"] / 8
    return {
        "codec": codec,
        "payload_bytes_a_message_up": round(payload_up / up, 1),
        "payload_bytes_a_message_down": round(payload_down / down, 1),
        "transport_bytes_a_message_up": round((outcome.wire_bytes_up - payload_up) / up),
        "transport_bytes_a_message_down": round((outcome.wire_bytes_down - payload_down) / down),
        "accuracy": [site["accuracy"] for site in outcome.report["sites"]],
        "seconds": round(time.monotonic() - start, 1),
    }


def main() -> None:
    """Measure every codec and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--codecs", nargs="*", default=CODECS, metavar="NAME")
    args = parser.parse_args()
    found = []
    for codec in args.codecs:
        found.append(measure(codec))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    args.out.write_text(json.dumps({"rounds": ROUNDS, "sites": len(SITES), "codecs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
