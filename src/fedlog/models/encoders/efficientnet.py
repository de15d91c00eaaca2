"""EfficientNet-Lite as an ONNX graph; each batch normalisation is folded into the weights of its convolution.

The architecture comes from the package `efficientnet_lite_pytorch`, the weights from `fold_norms`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]


def make_network(model: str, side: int) -> Any:
    """The network of that name with random weights, and with paddings for images of `side` x `side` pixels."""
    from efficientnet_lite_pytorch import EfficientNet  # an extra

    return EfficientNet.from_name(model, image_size=side).eval()


def _list_convolutions(network: Any) -> list[tuple[str, nn.Conv2d, Any]]:
    """The name, the convolution and the batch normalisation of each layer, from input to output."""
    found = [("stem", network._conv_stem, network._bn0)]
    for at, block in enumerate(network._blocks):
        if hasattr(block, "_expand_conv"):
            found.append((f"block{at}.expand", block._expand_conv, block._bn0))
        found.append((f"block{at}.depthwise", block._depthwise_conv, block._bn1))
        found.append((f"block{at}.project", block._project_conv, block._bn2))
    found.append(("head", network._conv_head, network._bn1))
    return found


def fold_norms(network: Any) -> Weights:
    """The weights and biases of the convolutions with batch normalisation folded in, computed in float64."""
    folded: Weights = {}
    for name, convolution, norm in _list_convolutions(network):
        scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
        weight = convolution.weight.double() * scale.reshape(-1, 1, 1, 1)
        bias = norm.bias.double() - norm.running_mean.double() * scale
        folded[f"{name}.weight"] = weight.detach().float().contiguous()
        folded[f"{name}.bias"] = bias.detach().float().contiguous()
    return folded


def build_graph(network: Any, weights: Weights, side: int) -> bytes:
    """The serialised ONNX graph from images (n, 3, side, side) to features (n, width)."""
    from onnx import TensorProto, helper, numpy_helper  # an extra

    nodes: list[Any] = []
    constants = [numpy_helper.from_array(value.numpy(), name) for name, value in weights.items()]
    # ReLU6 as a Clip: onnxruntime fuses it into the convolution before it.
    constants += [
        helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]),
        helper.make_tensor("six", TensorProto.FLOAT, [], [6.0]),
    ]
    layers = {name: convolution for name, convolution, _ in _list_convolutions(network)}

    def convolve(source: str, name: str, activate: bool) -> str:
        layer = layers[name]
        left, right, top, bottom = getattr(layer.static_padding, "padding", (0, 0, 0, 0))
        nodes.append(
            helper.make_node(
                "Conv",
                [source, f"{name}.weight", f"{name}.bias"],
                [name],
                kernel_shape=list(layer.kernel_size),
                strides=list(layer.stride),
                pads=[top, left, bottom, right],
                group=layer.groups,
            )
        )
        if not activate:
            return name
        nodes.append(helper.make_node("Clip", [name, "zero", "six"], [f"{name}.active"]))
        return f"{name}.active"

    at = convolve("images", "stem", activate=True)
    for number, block in enumerate(network._blocks):
        start, arguments = at, block._block_args
        if f"block{number}.expand" in layers:
            at = convolve(at, f"block{number}.expand", activate=True)
        at = convolve(at, f"block{number}.depthwise", activate=True)
        at = convolve(at, f"block{number}.project", activate=False)
        # The stride of a block is a number, or a list with one number.
        stride = arguments.stride if isinstance(arguments.stride, int) else arguments.stride[0]
        if block.id_skip and stride == 1 and arguments.input_filters == arguments.output_filters:
            nodes.append(helper.make_node("Add", [start, at], [f"block{number}.sum"]))
            at = f"block{number}.sum"
    at = convolve(at, "head", activate=True)
    nodes.append(helper.make_node("GlobalAveragePool", [at], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["features"]))
    width = weights["head.bias"].shape[0]
    graph = helper.make_graph(
        nodes,
        "efficientnet-lite",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, side, side])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", width])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
