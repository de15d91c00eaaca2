"""Estimate the entropy of small messages: no lossless codec can send fewer bits.

    python -m benchmarks.message_entropy --out benchmarks/records/message-entropy.json

The first rounds of FedLog and FedLog-C with `rows+q4` up and differences in `q4` down, on the data of the tables. The
entropy is that of the codes of one round and one direction taken together, as if they were drawn independently: what an
ideal coder of single codes would need for them. Scales, counts and framing come on top.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlog.engine.software import list_software_versions
from fedlog.experiments.run.prepare import make_simulation
from fedlog.experiments.tables.bits import WAYS_OF_SENDING
from fedlog.settings.resolve import resolve
from fedlog.wire import numbers

WAY = "q4-differences"
ROUNDS = {"mnist": 5, "cifar10": 3}
Codes = NDArray[np.uint8]


@contextmanager
def catch_codes() -> Iterator[list[Codes]]:
    """Collect the codes of every message that is encoded inside the block."""
    found: list[Codes] = []
    pack = numbers._pack_codes

    def catch(codes: Codes, bits: int) -> bytes:
        found.append(codes.copy())
        return pack(codes, bits)

    numbers._pack_codes = catch
    try:
        yield found
    finally:
        numbers._pack_codes = pack


def estimate_entropy(codes: Codes) -> float:
    """Estimate the entropy of one code in bits from the frequencies of codes, corrected for the estimator's bias."""
    counts = np.bincount(codes, minlength=1)
    shares = counts[counts > 0] / len(codes)
    # Miller and Madow: with few codes the plain estimate is too low.
    return float(-(shares * np.log2(shares)).sum() + (len(shares) - 1) / (2 * len(codes) * np.log(2)))


def measure(method: str, data: str) -> list[dict[str, Any]]:
    """The bits sent in each round and direction, and the entropy of their codes."""
    spec = replace(WAYS_OF_SENDING[WAY], method=method, data=data, rounds=ROUNDS[data])
    with make_simulation(resolve(spec)) as simulation:
        up: list[Codes] = []
        down: list[Codes] = []
        work, send = simulation.workers.make_encoded_uploads, simulation.server.encode_and_count_separate_broadcasts

        def watched_work(*arguments: Any) -> Any:
            with catch_codes() as found:
                uploads = work(*arguments)
            up[:] = found
            return uploads

        def watched_send(*arguments: Any) -> Any:
            with catch_codes() as found:
                sent = send(*arguments)
            down[:] = found
            return sent

        simulation.workers.make_encoded_uploads = watched_work  # type: ignore[method-assign]
        simulation.server.encode_and_count_separate_broadcasts = watched_send  # type: ignore[method-assign]
        rows = []
        for record in simulation.rounds():
            clients = record.participants
            for way, codes, bits in (("up", up, record.bits_up), ("down", down, record.bits_down)):
                joined = np.concatenate(codes)
                entries = len(joined) if way == "up" else len(joined) * clients // len(codes)
                rows.append(
                    {
                        "data": data,
                        "method": method,
                        "round": record.round,
                        "direction": way,
                        "entries_a_client": round(entries / clients, 1),
                        "bits_an_entry_sent": round(bits / entries, 3),
                        "bits_an_entry_entropy": round(estimate_entropy(joined), 3),
                    }
                )
        return rows


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    rows = []
    for data in ROUNDS:
        for method in ("fedlog", "fedlog-c"):
            rows += measure(method, data)
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    stored = {"way": WAY, "made_with": list_software_versions(), "rounds": rows}
    args.out.write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
