"""Time the block backend against our loop and against plain PyTorch, in turns in one run, with ratios and their spread.

python -m benchmarks.simulator [--workload mnist|cifar10] [--repeats 5] [--clients 20]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks.memory import list_children, read_cpu_seconds
from benchmarks.plain import PlainLoop, PlainProcesses
from benchmarks.workloads import Workload, keep_first_clients, load_workload
from fedlog.algorithms.registry import make_method
from fedlog.engine.clients import make_model_plan
from fedlog.engine.simulate.simulator import RoundRecord, Simulation
from fedlog.engine.software import list_software_versions
from fedlog.engine.training.backends import Engine
from fedlog.engine.training.tasks import Settings
from fedlog.models.body import build_body
from fedlog.settings.execution import BackendChoice, Execution
from fedlog.settings.training import RunSettings

RECORDS = Path(__file__).parent / "records"


class Variant(Protocol):
    """Something that can run one more round."""

    def round(self) -> tuple[float, float]:
        """Run one round; return its seconds and the mean accuracy."""

    def stop(self) -> None:
        """End the processes that the variant started."""


class Ours:
    """A simulation by fedlog, run round by round."""

    def __init__(self, work: Workload, method: str, choice: BackendChoice, jobs: int) -> None:
        body = build_body("cnn", work.make_body, work.federation.input_shape)
        bodies = [body] * len(work.federation.shards)
        plan = make_model_plan(work.federation, bodies)
        algorithm = make_method(method, plan, {"epochs": work.epochs, "learning_rate": work.learning_rate})
        engine = Engine(Settings(work.batch_size), choice)
        before = set(list_children())
        settings = RunSettings(rounds=10**6, execution=Execution(jobs=jobs))
        self._simulation = Simulation(algorithm, work.federation, bodies, plan, engine, settings).start()
        self.workers = set(list_children()) - before
        self._rounds: Iterator[RoundRecord] = self._simulation.rounds()

    def round(self) -> tuple[float, float]:
        """Run one round; return the seconds that the caller waited, and the mean accuracy."""
        start = time.perf_counter()
        record = next(self._rounds)
        return time.perf_counter() - start, record.accuracy_mean_over_clients

    @property
    def reason(self) -> str:
        """Which backend trains the body, and why."""
        return self._simulation.engine.explain(self._simulation.bodies[0])

    def stop(self) -> None:
        """End the workers."""
        self._simulation.stop()


def make_variants(work: Workload) -> dict[str, Variant]:
    """The variants to compare, by name."""
    cores = os.cpu_count() or 1
    return {
        f"block, {cores} processes": Ours(work, "fedlog", BackendChoice.BLOCK, cores),
        f"loop, {cores} processes": Ours(work, "fedlog", BackendChoice.LOOP, cores),
        **make_plain_variants(work, cores),
    }


def make_plain_variants(work: Workload, cores: int) -> dict[str, Variant]:
    """The plain loop, once for each sensible number of threads, and split over processes."""
    made: dict[str, Variant] = {
        f"plain loop, {threads} threads": PlainLoop(work, threads) for threads in sorted({1, cores})
    }
    made[f"plain loop, {cores} processes"] = PlainProcesses(work, cores)
    return made


def measure(work: Workload, repeats: int) -> dict[str, Any]:
    """Measure the seconds of a round of every variant, in turns; ratios are formed within each turn."""
    torch.set_num_threads(1)
    made = make_variants(work)
    turns = take_turns(made, repeats)
    for variant in made.values():
        variant.stop()
    block = next(name for name in made if name.startswith("block"))
    images = count_trained_images(work)
    return {
        "workload": work.name,
        "real_images": work.real,
        "clients": len(work.federation.shards),
        "load_of_the_machine": os.getloadavg()[0],
        "seconds": turns.seconds,
        "cpu_seconds": turns.cpu_seconds,
        "accuracy_by_round": turns.accuracy,
        "ratio_to_block": turns.ratios(block),
        "cpu_ratio_to_block": turns.cpu_ratios(block),
        "training_images_per_second": images / statistics.median(turns.seconds[block]),
        "matmul_gflops_per_core": measure_matmul_gflops(),
        "block_gflops_by_cpu_time": count_gflop(work) / statistics.median(turns.cpu_seconds[block]),
        "block_gflops_in_all": count_gflop(work) / statistics.median(turns.seconds[block]),
    }


@dataclass(frozen=True)
class Turns:
    """The times of the rounds of every variant, in each turn."""

    seconds: dict[str, list[float]]
    cpu_seconds: dict[str, list[float]]  # of all its processes: what else the machine does counts little in it
    accuracy: dict[str, list[float]]

    def ratios(self, own: str) -> dict[str, dict[str, float]]:
        """Each variant's seconds, divided by the seconds of the variant `own` in the same turn."""
        return {name: _compute_ratios(each, self.seconds[own]) for name, each in self.seconds.items()}

    def cpu_ratios(self, own: str) -> dict[str, dict[str, float]]:
        """The ratios of processor seconds, for one thread a process only, since threads wait for each other."""
        alone = {
            name: each for name, each in self.cpu_seconds.items() if not name.endswith(" threads") or " 1 " in name
        }
        return {name: _compute_ratios(each, self.cpu_seconds[own]) for name, each in alone.items()}


def _compute_ratios(one: list[float], other: list[float]) -> dict[str, float]:
    return summarise_spread([a / b for a, b in zip(one, other, strict=True)])


def take_turns(made: dict[str, Variant], repeats: int) -> Turns:
    """Run one round of each variant in turn, after a first round to warm up, and return times and accuracies."""
    turns = Turns(*({name: [] for name in made} for _ in range(3)))
    for turn in range(repeats + 1):
        for name, variant in made.items():
            before = read_cpu_seconds()
            took, reached = variant.round()
            turns.accuracy[name].append(reached)
            if turn:
                turns.seconds[name].append(took)
                turns.cpu_seconds[name].append(read_cpu_seconds() - before)
    return turns


def measure_matmul_gflops() -> float:
    """Measure the speed of a 2048-wide float32 matrix product on one core."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    a @ b
    best = min(_time_product(a, b) for _ in range(5))
    return 2 * 2048**3 / best / 1e9


def _time_product(a: torch.Tensor, b: torch.Tensor) -> float:
    start = time.perf_counter()
    a @ b
    return time.perf_counter() - start


def count_gflop(work: Workload) -> float:
    """Count the multiplications and additions of one round: forward once, backward twice (once in the first layer)."""
    layers = (
        ((10 * 24 * 24, 25), (20 * 8 * 8, 250), (50, 320), (10, 50))
        if work.name == "mnist"
        else ((6 * 28 * 28, 75), (16 * 10 * 10, 150), (120, 400), (100, 120), (10, 100))
    )
    forward = [2 * outputs * inputs for outputs, inputs in layers]
    training = 3 * sum(forward) - forward[0]
    looks = sum(len(s.train) + len(s.test) for s in work.federation.shards)
    return (count_trained_images(work) * training + looks * sum(forward)) / 1e9


def count_trained_images(work: Workload) -> int:
    """How many images a round trains on, counted once an epoch."""
    return work.epochs * sum(len(shard.train) for shard in work.federation.shards)


def summarise_spread(ratios: list[float]) -> dict[str, float]:
    """The median, the lowest and the highest of these ratios."""
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def main(
    out: Path = RECORDS,
    names: tuple[str, ...] = ("mnist", "cifar10"),
    repeats: int = 5,
    clients: int | None = None,
) -> None:
    """Measure, print and write `simulator-<workload>.json`."""
    for name in names:
        found = measure(keep_first_clients(load_workload(name), clients), repeats)
        found["made_with"] = list_software_versions()
        asked = "" if clients is None else f" --clients {clients}"
        found["command"] = f"python -m benchmarks.simulator --workload {name} --repeats {repeats}{asked}"
        out.mkdir(exist_ok=True)
        (out / f"simulator-{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name}: {found['training_images_per_second']:.0f} training images a second, ", end="")
        share = found["block_gflops_in_all"] / found["matmul_gflops_per_core"] / (os.cpu_count() or 1)
        print(f"{100 * share:.0f} % of the machine's matrix-product speed")
        for variant, ratio in found["ratio_to_block"].items():
            took = statistics.median(found["seconds"][variant])
            compared = f"{ratio['median']:5.2f} x block ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
            reached = 100 * found["accuracy_by_round"][variant][-1]
            by_cpu = found["cpu_ratio_to_block"].get(variant)
            cpu = f"  {by_cpu['median']:.2f} by CPU time" if by_cpu else ""
            print(f"  {variant:28s} {took:7.2f} s  {compared}{cpu}  accuracy {reached:.1f} %")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=["mnist", "cifar10"], action="append")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", type=int, help="the first clients only, where the whole takes too long")
    args = parser.parse_args()
    main(names=tuple(args.workload or ("mnist", "cifar10")), repeats=args.repeats, clients=args.clients)
