"""Time the compiled convolution with pooling and ReLU against PyTorch's layers, one client after another, on one core.

python -m benchmarks.convolution [--repeats 20]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.simulator import RECORDS, measure_matmul_gflops
from fedlog.engine.software import list_software_versions
from fedlog.engine.training.block.convolve import ConvShape, convolve_and_pool

# name -> sizes, clients, batch: the paper's layers as they are trained. First layers need no gradient of their inputs.
LAYERS = {
    "mnist 1": (ConvShape(1, 10, 28, 28, 5, 5, 2, 2, rectify=True), 25, 10),
    "mnist 2": (ConvShape(10, 20, 12, 12, 5, 5, 2, 2, rectify=True), 25, 10),
    "cifar 1": (ConvShape(3, 6, 32, 32, 5, 5, 2, 2, rectify=True), 8, 50),
    "cifar 2": (ConvShape(6, 16, 14, 14, 5, 5, 2, 2, rectify=True), 8, 50),
}


def measure(shape: ConvShape, clients: int, batch: int, first: bool, repeats: int) -> dict[str, float]:
    """The GFLOP/s of useful arithmetic in the best of the repeats: for forward, and for backward alone."""
    inputs = torch.randn(clients, shape.channels_in, shape.rows_in, shape.columns_in, batch)
    kernel = (shape.kernel_rows, shape.kernel_columns)
    weight = torch.randn(clients, shape.channels_out, shape.channels_in, *kernel).requires_grad_()
    bias = torch.randn(clients, shape.channels_out).requires_grad_()
    per_client = [one.permute(3, 0, 1, 2).contiguous() for one in inputs]

    def run_ours() -> list[Tensor]:
        return [convolve_and_pool(shape, inputs, weight, bias)]

    def run_plain() -> list[Tensor]:
        each = zip(per_client, weight, bias, strict=True)
        return [functional.relu(functional.max_pool2d(functional.conv2d(x, w, b), 2)) for x, w, b in each]

    inputs.requires_grad_(not first)
    for one in per_client:
        one.requires_grad_(not first)
    outputs = shape.channels_out * shape.rows_out * shape.pool_rows * shape.columns_out * shape.pool_columns
    arithmetic = 2 * clients * batch * outputs * shape.channels_in * kernel[0] * kernel[1] / 1e9
    found = {}
    for name, layer in (("ours", run_ours), ("plain", run_plain)):
        forward, backward = _find_best_speeds(layer, repeats)
        found |= {f"{name} forward": arithmetic / forward, f"{name} backward": (2 - first) * arithmetic / backward}
    return found


def _find_best_speeds(layer: Callable[[], list[Tensor]], repeats: int) -> tuple[float, float]:
    forward, backward = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        outputs = layer()
        between = time.perf_counter()
        torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])
        forward.append(between - start)
        backward.append(time.perf_counter() - between)
    return min(forward), min(backward)


def main(out: Path = RECORDS, repeats: int = 20) -> None:
    """Measure, print and write `convolution.json`."""
    torch.set_num_threads(1)
    product = measure_matmul_gflops()
    found: dict[str, Any] = {"matmul_gflops": product, "layers": {}}
    print(f"a 2048-wide product: {product:.0f} GFLOP/s")
    for name, (shape, clients, batch) in LAYERS.items():
        speeds = measure(shape, clients, batch, name.endswith("1"), repeats)
        found["layers"][name] = speeds
        print(f"  {name}: " + ", ".join(f"{what} {speed:.0f}" for what, speed in speeds.items()) + " GFLOP/s")
    found |= {"made_with": list_software_versions(), "command": f"python -m benchmarks.convolution --repeats {repeats}"}
    out.mkdir(exist_ok=True)
    (out / "convolution.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    main(repeats=parser.parse_args().repeats)
