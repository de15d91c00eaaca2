"""The peak memory of the workers in two rounds of the paper's CIFAR-10 setting: python -m benchmarks.peak_memory."""

from __future__ import annotations

import json
import os

import torch

from benchmarks.memory import peak_bytes
from benchmarks.simulator import RECORDS, Ours
from benchmarks.workloads import workload
from fedlog.engine.software import software_versions
from fedlog.settings.execution import BackendChoice


def main() -> None:
    """Measure, print and write `peak-memory-cifar10.json`."""
    torch.set_num_threads(1)
    work, cores = workload("cifar10"), os.cpu_count() or 1
    ours = Ours(work, "fedlog", BackendChoice.BLOCK, cores)
    for _ in range(2):
        ours.round()
    found = {
        "real_images": work.real,
        "clients": len(work.federation.shards),
        # Pages that the workers share are counted in each of them: an upper bound.
        "peak_bytes_of_workers": sum(peak_bytes(pid) for pid in ours.workers),
        "workers": len(ours.workers),
        "made_with": software_versions(),
        "command": "python -m benchmarks.peak_memory",
    }
    ours.stop()
    (RECORDS / "peak-memory-cifar10.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{found['peak_bytes_of_workers'] / 2**30:.2f} GiB in {found['workers']} workers")


if __name__ == "__main__":
    main()
