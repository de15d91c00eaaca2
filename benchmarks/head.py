"""Time the exact MAP head against Adam and L-BFGS on the same posteriors, in turns in one process.

    python -m benchmarks.head

writes benchmarks/records/head.json. Adam uses the paper's head learning rate 0.01. The paper prints no stopping rule;
here Adam stops when the gradient norm of the log posterior per record is below 1e-3, the loosest reading, and gets the
gradient by formula rather than by autograd. Both choices favour Adam.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
import scipy
import torch
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from fedlog.core.keys import Key
from fedlog.core.map_head import solve_head
from fedlog.core.posterior import Posterior, Prior, log_partition_gradient
from fedlog.core.stats import Statistics

RECORDS = Path(__file__).parent / "records"
SIZES = {"10x51": (10, 51, 3000), "100x101": (100, 101, 50000)}  # classes, width, records: MNIST 5 % and CIFAR-100
FEATURE_NORM = 3.0  # gives heads with rows of norm 5 to 6, as training with dropout does
STOP_AT_GRADIENT = 1e-3
LEARNING_RATE = 0.01
REPEATS = 9
CALLS_PER_TIMING = {"exact": 20, "adam": 1, "lbfgs": 1}  # one exact solve is too short for the clock on a busy machine
BAR = 100.0


@dataclass(frozen=True)
class Figures:
    """One solver on one size: seconds per solve, the ratio to the exact solver, and how wrong its head is.

    Wall-clock and CPU seconds agree on an idle machine; where they do not, the machine had other work.
    """

    seconds: list[float]
    seconds_median: float
    cpu_seconds_median: float
    ratio_to_exact: list[float]
    ratio_median: float
    cpu_ratio_median: float
    relative_gradient: float
    largest_entry_error: float
    steps: int


def make_posterior(n_class: int, width: int, records: int) -> Posterior:
    """Draw ReLU features in one cluster per class, with root-mean-square norm FEATURE_NORM; return the posterior."""
    generator = Key(0).child("benchmark", "head", n_class, width).numpy()
    labels = generator.integers(0, n_class, records)
    centres = generator.standard_normal((n_class, width - 1))
    features = np.maximum(centres[labels] + 0.5 * generator.standard_normal((records, width - 1)), 0)
    features *= FEATURE_NORM / np.sqrt((features**2).sum(axis=1).mean())
    return Prior().posterior(Statistics.from_records(torch.from_numpy(features), torch.from_numpy(labels), n_class))


def solve_exactly(posterior: Posterior) -> tuple[Tensor, int]:
    """Solve for the exact head (n_class, m), with its certificate; return it and the number of Newton steps."""
    head = solve_head(posterior)
    return head.weights, head.certificate.iterations


def solve_by_adam(posterior: Posterior) -> tuple[Tensor, int]:
    """Train the head (n_class, m) by Adam, starting from zero; return it and the number of steps."""
    target = posterior.chi / posterior.nu
    eta = torch.nn.Parameter(torch.zeros_like(target))
    optimiser = torch.optim.Adam([eta], lr=LEARNING_RATE)
    steps = 0
    while True:
        eta.grad = log_partition_gradient(eta.detach()) - target
        if float(torch.linalg.vector_norm(eta.grad)) < STOP_AT_GRADIENT:
            return eta.detach(), steps
        optimiser.step()
        steps += 1


def solve_by_lbfgs(posterior: Posterior) -> tuple[Tensor, int]:
    """Train the head (n_class, m) by scipy's L-BFGS-B from zero, to a largest gradient entry of 1e-9."""
    target = posterior.chi.numpy() / posterior.nu

    def loss(flat: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        eta = flat.reshape(target.shape)
        energies = np.einsum("ij,ij->i", eta, eta) / 4
        shares = np.exp(energies - energies.max())
        total = shares.sum()
        value = energies.max() + np.log(total) - np.vdot(eta, target)
        return float(value), ((shares / total)[:, None] * eta / 2 - target).ravel()

    options = {"maxiter": 100_000, "maxfun": 100_000, "ftol": 0.0, "gtol": 1e-9}
    found = minimize(loss, np.zeros(target.size), jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(found.x.reshape(target.shape)), int(found.nit)


SOLVERS: dict[str, Callable[[Posterior], tuple[Tensor, int]]] = {
    "exact": solve_exactly,
    "adam": solve_by_adam,
    "lbfgs": solve_by_lbfgs,
}


def measure(posterior: Posterior, repeats: int) -> dict[str, Figures]:
    """The figures of every solver on one posterior; in each repeat the solvers take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in SOLVERS}
    cpu: dict[str, list[float]] = {name: [] for name in SOLVERS}
    heads = {name: solve(posterior) for name, solve in SOLVERS.items()}  # also warms everything up
    for _ in range(repeats):
        for name, solve in SOLVERS.items():
            calls = CALLS_PER_TIMING[name]
            start, cpu_start = time.perf_counter(), time.process_time()
            for _ in range(calls):
                solve(posterior)
            seconds[name].append((time.perf_counter() - start) / calls)
            cpu[name].append((time.process_time() - cpu_start) / calls)
    exact = heads["exact"][0]
    scale = float(torch.linalg.vector_norm(posterior.chi))
    figures = {}
    for name, (head, steps) in heads.items():
        ratios, cpu_ratios = (
            [own / base for own, base in zip(taken[name], taken["exact"], strict=True)] for taken in (seconds, cpu)
        )
        figures[name] = Figures(
            seconds=seconds[name],
            seconds_median=median(seconds[name]),
            cpu_seconds_median=median(cpu[name]),
            ratio_to_exact=ratios,
            ratio_median=median(ratios),
            cpu_ratio_median=median(cpu_ratios),
            relative_gradient=float(torch.linalg.vector_norm(posterior.gradient(head))) / scale,
            largest_entry_error=float((head - exact).abs().max()),
            steps=steps,
        )
    return figures


def main(out: Path = RECORDS, repeats: int = REPEATS) -> None:
    """Measure, print a table and write `head.json` into the folder `out`."""
    # One thread each: matrices this small only lose by being split, and idle BLAS threads spin on a busy machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            sizes = {name: measure(make_posterior(*size), repeats) for name, size in SIZES.items()}
    finally:
        torch.set_num_threads(threads)
    record = {
        "command": "python -m benchmarks.head",
        "settings": {
            "sizes": {
                name: dict(zip(("n_class", "width", "records"), size, strict=True)) for name, size in SIZES.items()
            },
            "feature_norm": FEATURE_NORM,
            "adam_learning_rate": LEARNING_RATE,
            "adam_stops_at_gradient_norm_per_record": STOP_AT_GRADIENT,
            "repeats": repeats,
            "threads": 1,
        },
        "made_with": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load_average_1min": round(os.getloadavg()[0], 2),
        },
        "bar_adam_ratio_at_least": BAR,
        "bar_met": all(
            min(figures["adam"].ratio_median, figures["adam"].cpu_ratio_median) >= BAR for figures in sizes.values()
        ),
        "sizes": {name: {solver: asdict(f) for solver, f in figures.items()} for name, figures in sizes.items()},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "head.json").write_text(json.dumps(record, indent=1) + "\n")
    print_table(sizes)


def print_table(sizes: dict[str, dict[str, Figures]]) -> None:
    """Print one line per size and solver."""
    columns = ("ms", "cpu ms", "x exact", "(low - high)", "x cpu", "gradient", "error", "steps")
    print(f"{'size':8} {'solver':6}", *(f"{column:>12}" for column in columns))
    for name, figures in sizes.items():
        for solver, f in figures.items():
            cells = (
                f"{1e3 * f.seconds_median:.3f}",
                f"{1e3 * f.cpu_seconds_median:.3f}",
                f"{f.ratio_median:.0f}",
                f"({min(f.ratio_to_exact):.0f} - {max(f.ratio_to_exact):.0f})",
                f"{f.cpu_ratio_median:.0f}",
                f"{f.relative_gradient:.1e}",
                f"{f.largest_entry_error:.1e}",
                str(f.steps),
            )
            print(f"{name:8} {solver:6}", *(f"{cell:>12}" for cell in cells))


if __name__ == "__main__":
    main()
