"""Time the block backend against our loop for several methods, in turns: do they gain as much as FedLog does?

python -m benchmarks.methods [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch

from benchmarks.simulator import RECORDS, Ours, summarise_spread
from benchmarks.workloads import Workload, load_workload
from fedlog.engine.software import list_software_versions
from fedlog.settings.execution import BackendChoice

METHODS = ("fedlog", "fedavg", "fedproto", "fedrep")


def measure(work: Workload, repeats: int) -> dict[str, Any]:
    """For each method: the ratio of the loop's time for a round to the block backend's, formed within each turn."""
    torch.set_num_threads(1)
    cores = os.cpu_count() or 1
    pairs = {
        name: (Ours(work, name, BackendChoice.BLOCK, cores), Ours(work, name, BackendChoice.LOOP, cores))
        for name in METHODS
    }
    ratios: dict[str, list[float]] = {name: [] for name in METHODS}
    for turn in range(repeats + 1):
        for name, (block, loop) in pairs.items():
            fast, slow = block.round()[0], loop.round()[0]
            if turn:  # the first round warms up
                ratios[name].append(slow / fast)
    for pair in pairs.values():
        for ours in pair:
            ours.stop()
    gain = {name: summarise_spread(each) for name, each in ratios.items()}
    share = {name: gain[name]["median"] / gain["fedlog"]["median"] for name in METHODS}
    return {"workload": work.name, "loop_over_block": gain, "share_of_fedlogs_gain": share}


def main(out: Path = RECORDS, repeats: int = 5) -> None:
    """Measure, print and write `methods-mnist.json`."""
    found = measure(load_workload("mnist"), repeats)
    found |= {"made_with": list_software_versions(), "command": f"python -m benchmarks.methods --repeats {repeats}"}
    out.mkdir(exist_ok=True)
    (out / "methods-mnist.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, gain in found["loop_over_block"].items():
        around = f"({gain['lowest']:.2f} to {gain['highest']:.2f})"
        print(f"  {name:10s} {gain['median']:5.2f} x {around}, {found['share_of_fedlogs_gain'][name]:.2f} of FedLog's")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    main(repeats=parser.parse_args().repeats)
