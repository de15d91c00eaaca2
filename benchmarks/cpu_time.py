"""Measure processor time for a client and a round, ours against the plain loop, each on one thread, in turns.

python -m benchmarks.cpu_time [--work mnist] [--repeats 3]

For busy machines, on which wall-clock seconds say little: processor time does not count other programs, except for
their effect on the caches. Ours trains all clients (16 of them on CIFAR-10), the plain loop a few. `har` compares UCI
HAR with its own body through blocks and through `vmap`, instead of the plain loop.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.bodies import BODIES, make_workload
from benchmarks.memory import read_cpu_seconds
from benchmarks.plain import PlainProcesses
from benchmarks.simulator import RECORDS, Ours, Variant, summarise_spread
from benchmarks.workloads import Workload, keep_first_clients, load_data, load_workload
from fedlog.engine.software import list_software_versions
from fedlog.models.networks import signal_cnn
from fedlog.settings.execution import BackendChoice

# name -> clients of ours, of the plain loop
SIZES = {"mnist": (50, 6), "cifar10": (16, 2), "resnet8": (10, 3), "vgg": (12, 3), "mlp-layernorm": (20, 6)} | {
    "mobilenet-v2": (2, 2),
    "lenet": (20, 6),
    "signal-cnn": (20, 6),
    "har": (6, 6),
}


def measure(name: str, repeats: int) -> dict[str, Any]:
    """The milliseconds for a client and a round, by ours and by the plain loop, in each turn, and their ratios."""
    torch.set_num_threads(1)
    ours, few = SIZES[name]
    work = keep_first_clients(_make_workload(name, ours), ours)
    against = "vmap" if name == "har" else "plain"
    # The plain loop has a process of its own, begun first: ours changes how its process keeps freed memory.
    other: Variant = (
        Ours(work, "fedlog", BackendChoice.VMAP, 1)
        if name == "har"
        else PlainProcesses(keep_first_clients(work, few), 1)
    )
    made = Ours(work, "fedlog", BackendChoice.AUTO, 1)
    turns = [(_measure_cpu_ms(made) / ours, _measure_cpu_ms(other) / few) for _ in range(repeats + 1)][1:]
    reason = made.reason
    made.stop()
    other.stop()
    return {
        "clients": {"ours": ours, against: few},
        "backend": reason,
        "milliseconds_a_client": {"ours": [ms for ms, _ in turns], against: [ms for _, ms in turns]},
        "times_faster": summarise_spread([theirs / own for own, theirs in turns]),
        "load_of_the_machine": os.getloadavg()[0],
        "made_with": list_software_versions(),
        "command": f"python -m benchmarks.cpu_time --work {name} --repeats {repeats}",
    }


def _make_workload(name: str, clients: int) -> Workload:
    if name == "har":
        federation, real = load_data(name, None)
        return Workload(name, federation, 1, 50, 0.001, 50, real, lambda: signal_cnn(9, 128))
    return make_workload(name, clients) if name in BODIES else load_workload(name)


def _measure_cpu_ms(variant: Variant) -> float:
    start = read_cpu_seconds()
    variant.round()
    return 1000 * (read_cpu_seconds() - start)


def main(out: Path = RECORDS, names: tuple[str, ...] = tuple(SIZES), repeats: int = 3) -> None:
    """Measure, print and write `cpu-time.json`; entries that are not measured now stay as they are."""
    path = out / "cpu-time.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        found[name] = one = measure(name, repeats)
        path.write_text(json.dumps(found, indent=1) + "\n")
        took = {who: statistics.median(each) for who, each in one["milliseconds_a_client"].items()}
        ratio = one["times_faster"]
        words = ", ".join(f"{who} {ms:.1f} ms" for who, ms in took.items())
        print(f"{name:14s} {words}: {ratio['median']:.2f} times", end=" ")
        print(f"({ratio['lowest']:.2f} to {ratio['highest']:.2f})\n  {one['backend']}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", choices=list(SIZES), action="append")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    main(names=tuple(args.work or SIZES), repeats=args.repeats)
