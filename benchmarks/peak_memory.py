"""The peak memory of the workers in four rounds of the paper's settings: python -m benchmarks.peak_memory.

Each setting runs in a process of its own: workers are forked and start with every page of the process that forks them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from benchmarks.memory import read_peak_bytes
from benchmarks.simulator import RECORDS, Ours
from benchmarks.workloads import load_workload
from fedlog.engine.software import list_software_versions
from fedlog.settings.execution import BackendChoice

ROUNDS = 4


def measure(name: str) -> dict[str, Any]:
    """The summed peak of the workers' memory in the first rounds of a setting."""
    torch.set_num_threads(1)
    work, cores = load_workload(name), os.cpu_count() or 1
    ours = Ours(work, "fedlog", BackendChoice.BLOCK, cores)
    for _ in range(ROUNDS):
        ours.round()
    found = {
        "workload": name,
        "real_images": work.real,
        "clients": len(work.federation.shards),
        "rounds": ROUNDS,
        # Pages that the workers share are counted in each of them: an upper bound.
        "peak_bytes_of_workers": sum(read_peak_bytes(pid) for pid in ours.workers),
        "workers": len(ours.workers),
    }
    ours.stop()
    return found


def main() -> None:
    """Measure, print and write `peak-memory.json`."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        settings = list(pool.map(measure, ("mnist", "cifar10")))
    found = {"settings": settings, "made_with": list_software_versions(), "command": "python -m benchmarks.peak_memory"}
    (RECORDS / "peak-memory.json").write_text(json.dumps(found, indent=1) + "\n")
    for each in settings:
        print(f"{each['workload']}: {each['peak_bytes_of_workers'] / 2**30:.2f} GiB in {each['workers']} workers")


if __name__ == "__main__":
    main()
