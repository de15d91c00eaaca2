"""Measure time and memory for 10 to 10,000 clients with the MNIST CNN; clients share the images of the pool.

    python -m benchmarks.scale [--most 10000]

Each size runs in a process of its own, 60 training and 40 test images a client; one round, after one that warms up
where there are few clients.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedlog.engine.software import list_software_versions

RECORDS = Path(__file__).parent / "records"
SIZES = (10, 30, 100, 300, 1000, 3000, 10000)
WARM_FROM = 1000  # clients: from here on the first chunks warm up for the rest


def measure(clients: int) -> dict[str, float]:
    """Measure one round: its seconds, and the peak memory of this process and its workers."""
    # Imported here: the parent only starts processes and draws, and its memory should not be counted twice.
    import torch

    from benchmarks.memory import list_children, read_peak_bytes
    from benchmarks.simulator import Ours
    from benchmarks.workloads import load_workload, repeat_clients
    from fedlog.settings.execution import BackendChoice

    torch.set_num_threads(1)
    work = repeat_clients(load_workload("mnist"), clients, train=60, test=40)
    ours = Ours(work, "fedlog", BackendChoice.BLOCK, os.cpu_count() or 1)
    if clients < WARM_FROM:
        ours.round()
    seconds, _ = ours.round()
    peak = sum(read_peak_bytes(pid) for pid in (os.getpid(), *list_children()))
    ours.stop()
    return {"clients": clients, "seconds": seconds, "peak_bytes": peak}


def main(out: Path = RECORDS, most: int = SIZES[-1]) -> None:
    """Measure every size, print, write `scale.json` and draw `scale.svg`."""
    rows = []
    for clients in (size for size in SIZES if size <= most):
        command = [sys.executable, "-m", "benchmarks.scale", "--only", str(clients)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        row = rows[-1]
        per_client = 1000 * row["seconds"] / clients
        print(f"{clients:6d} clients  {row['seconds']:8.2f} s a round  {per_client:6.1f} ms a client  "
              f"{row['peak_bytes'] / 2**30:.2f} GiB")  # fmt: skip
    found = {
        "rows": rows,
        "made_with": list_software_versions(),
        "command": f"python -m benchmarks.scale --most {most}",
    }
    out.mkdir(exist_ok=True)
    (out / "scale.json").write_text(json.dumps(found, indent=1) + "\n")
    _draw(rows, out / "scale.svg")


def _draw(rows: list[dict[str, float]], path: Path) -> None:
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    FigureCanvasAgg(figure)
    time, memory = figure.subplots(1, 2)
    clients = [row["clients"] for row in rows]
    time.loglog(clients, [row["seconds"] for row in rows], marker="o")
    time.set(xlabel="clients", ylabel="seconds a round")
    memory.semilogx(clients, [row["peak_bytes"] / 2**30 for row in rows], marker="o")
    memory.axhline(4, linestyle="--", color="grey")
    memory.set(xlabel="clients", ylabel="peak memory, GiB", ylim=(0, 4.5))
    for axes in (time, memory):
        axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=SIZES[-1])
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args.only)))
    else:
        main(most=args.most)
