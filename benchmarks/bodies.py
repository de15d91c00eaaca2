"""Time `auto` against the plain loop for bodies as users write them, in turns, with ratios and their spread.

python -m benchmarks.bodies [--body lenet] [--repeats 5] [--clients 50]

Each body sees images of MNIST, or signals of UCI HAR, 60 records a client, one epoch a round in batches of ten, and
every client is evaluated after every round. MobileNetV2 has fewer clients: a round of it takes as long as all others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.simulator import RECORDS, Ours, make_plain_variants, measure_matmul_gflops, take_turns
from benchmarks.workloads import Workload, load_data, repeat_clients
from fedlog.engine.software import list_software_versions
from fedlog.models.networks import FEATURES, mobilenet_v2, signal_cnn
from fedlog.settings.execution import BackendChoice

CLIENTS, TRAIN, TEST, BATCH = 50, 60, 100, 10


def lenet() -> nn.Module:
    """LeNet-5 with padding in its first layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
    )


def vgg() -> nn.Module:
    """Three padded convolutions, each with GroupNorm, ReLU and pooling."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(576, 64), nn.ReLU())


class Residual(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(4, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(4, after)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(4, after))

    def forward(self, inputs: Tensor) -> Tensor:
        """The feature maps; with a stride of 2 they have half the rows and columns."""
        maps = torch.relu(self.first_norm(self.first(inputs)))
        return torch.relu(self.second_norm(self.second(maps)) + self.short(inputs))


class ResNet8(nn.Module):
    """One convolution and three residual blocks of 16, 32 and 64 channels, with GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(4, 16)
        self.blocks = nn.Sequential(Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 1, rows, columns) -> (n, 64)."""
        maps: Tensor = self.blocks(torch.relu(self.norm(self.first(inputs))))
        return maps.mean((2, 3))


def perceptron() -> nn.Module:
    """Two linear layers with LayerNorm and GELU."""
    first, second = (nn.Linear(784, 128), nn.LayerNorm(128), nn.GELU()), (nn.Linear(128, 64), nn.LayerNorm(64))
    return nn.Sequential(nn.Flatten(), *first, *second, nn.GELU())


# name -> how it is made, features, data set, clients
BODIES: dict[str, tuple[Callable[[], nn.Module], int, str, int]] = {
    "lenet": (lenet, 84, "mnist", CLIENTS),
    "vgg": (vgg, 64, "mnist", CLIENTS),
    "resnet8": (ResNet8, 64, "mnist", CLIENTS),
    "signal-cnn": (lambda: signal_cnn(9, 128), 50, "har", CLIENTS),
    "mlp-layernorm": (perceptron, 64, "mnist", CLIENTS),
    "mobilenet-v2": (lambda: mobilenet_v2(1), FEATURES, "mnist", 4),
}


def make_workload(name: str, clients: int = CLIENTS) -> Workload:
    """The workload of this body: its data set, and at most so many clients."""
    make, width, data, most = BODIES[name]
    federation, real = load_data(data, None)
    base = Workload(name, federation, 1, BATCH, 0.001, width, real, make)
    return repeat_clients(base, min(clients, most), TRAIN, TEST)


def measure(name: str, repeats: int, clients: int) -> dict[str, Any]:
    """The seconds of a round of every variant, measured in turns, and the ratios within each turn."""
    torch.set_num_threads(1)
    work, cores = make_workload(name, clients), os.cpu_count() or 1
    ours = Ours(work, "fedlog", BackendChoice.AUTO, cores)
    made = {f"auto, {cores} processes": ours, **make_plain_variants(work, cores)}
    turns = take_turns(made, repeats)
    reason = ours.reason
    for variant in made.values():
        variant.stop()
    own, *others = made
    split = others[-1]
    best = min(others[:-1], key=lambda each: statistics.median(turns.seconds[each]))
    ratios, by_cpu = turns.ratios(own), turns.cpu_ratios(own)
    return {
        "body": name,
        "real_records": work.real,
        "clients": len(work.federation.shards),
        "backend": reason,
        "seconds": turns.seconds,
        "cpu_seconds": turns.cpu_seconds,
        "accuracy_by_round": turns.accuracy,
        "ratio_to_ours": ratios,
        "plain_at_its_best_threads": best,
        "times_faster_than_best_threads": ratios[best],
        "times_faster_than_processes": ratios[split],
        "times_faster_by_cpu_time": by_cpu[split],
    }


def main(out: Path = RECORDS, names: tuple[str, ...] = tuple(BODIES), repeats: int = 5, clients: int = CLIENTS) -> None:
    """Measure, print and write `bodies.json`; bodies that are not measured now stay in it as they were."""
    path = out / "bodies.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"bodies": {}}
    for name in names:
        one = measure(name, repeats, clients)
        one |= {
            "matmul_gflops_per_core": measure_matmul_gflops(),
            "load_of_the_machine": os.getloadavg()[0],
            "made_with": list_software_versions(),
            "command": f"python -m benchmarks.bodies --body {name} --repeats {repeats} --clients {clients}",
        }
        found["bodies"][name] = one
        out.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        took = statistics.median(next(iter(one["seconds"].values())))
        parts = [
            ("best threads", one["times_faster_than_best_threads"]),
            ("two processes", one["times_faster_than_processes"]),
            ("two processes by CPU time", one["times_faster_by_cpu_time"]),
        ]
        words = [f"{r['median']:.2f} x {what} ({r['lowest']:.2f} to {r['highest']:.2f})" for what, r in parts]
        print(f"{name:14s} {took:6.2f} s a round, {', '.join(words)}\n  {one['backend']}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--body", choices=list(BODIES), action="append")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    args = parser.parse_args()
    main(names=tuple(args.body or BODIES), repeats=args.repeats, clients=args.clients)
