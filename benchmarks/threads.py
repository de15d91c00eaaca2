"""Time two threads of one process against two worker processes: the paper's MNIST round, with clients split evenly.

python -m benchmarks.threads [--repeats 5]

In turns, so that other work on the machine hits both alike. The threads train half of the clients each with their own
simulation: all that they share is the interpreter, which the compiled code and PyTorch release while they compute.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.simulator import RECORDS, Ours, summarise_spread
from benchmarks.workloads import Workload, load_workload
from fedlog.experiments.run.execute import list_software_versions
from fedlog.settings.execution import BackendChoice

CLIENTS = 50


def measure(repeats: int) -> dict[str, Any]:
    """Measure the seconds of a round with threads and with processes, and how much longer the threads take."""
    torch.set_num_threads(1)
    work = load_workload("mnist")
    halves = [_take_part(work, slice(start, CLIENTS, 2)) for start in (0, 1)]
    apart = Ours(_take_part(work, slice(0, CLIENTS)), "fedlog", BackendChoice.BLOCK, 2)
    together = [Ours(half, "fedlog", BackendChoice.BLOCK, 1) for half in halves]
    with ThreadPoolExecutor(2) as pool:
        turns = [
            (_measure_seconds(lambda: list(pool.map(lambda one: one.round(), together))), _measure_seconds(apart.round))
            for _ in range(repeats + 1)
        ][1:]
    for one in (apart, *together):
        one.stop()
    return {
        "clients": CLIENTS,
        "seconds": {"two threads": [one for one, _ in turns], "two processes": [other for _, other in turns]},
        "threads_take_times_as_long": summarise_spread([one / other for one, other in turns]),
        "load_of_the_machine": os.getloadavg()[0],
        "made_with": list_software_versions(),
        "command": f"python -m benchmarks.threads --repeats {repeats}",
    }


def _take_part(work: Workload, which: slice) -> Workload:
    return replace(work, federation=replace(work.federation, shards=work.federation.shards[which]))


def _measure_seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main(out: Path = RECORDS, repeats: int = 5) -> None:
    """Measure, print and write `threads-mnist.json`."""
    found = measure(repeats)
    (out / "threads-mnist.json").write_text(json.dumps(found, indent=1) + "\n")
    ratio = found["threads_take_times_as_long"]
    words = f"two threads take {ratio['median']:.2f} times as long as two processes"
    print(f"{words} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    main(repeats=parser.parse_args().repeats)
