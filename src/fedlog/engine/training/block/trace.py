"""Trace a module with `torch.fx` into a list of operations, and run it to find the shape of every result.

Calls of `F.relu`, `torch.flatten` or `+` are listed as the layers that do the same, so that the registry of blocks
needs to know only layers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedlog.engine.training.block.network import Shape
from fedlog.engine.training.block.registry import BLOCKS
from fedlog.models.module_checks import make_trial_records


class Add(nn.Module):
    """Stands for an addition of two inputs of the same shape."""


class Concatenate(nn.Module):
    """Stands for joining inputs along the channels."""


class SpatialMean(nn.Module):
    """Stands for the mean of every channel over all positions."""


@dataclass(eq=False)
class Operation:
    """One operation of a traced module."""

    node: fx.Node
    name: str
    layer: nn.Module | None  # None: an operation that no layer computes
    sources: dict[fx.Node, Operation]  # the operation of each node that it reads (that of an identity is its input's)
    shape: Shape | None  # the output's shape for one record; None: the output is not a tensor of records

    @cached_property
    def reads(self) -> list[Operation]:
        """The operations whose results this one uses; for a layer, without those that have no batch axis (weights)."""
        return [one for one in self.sources.values() if self.layer is None or one.shape is not None]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in BLOCKS or super().is_leaf_module(m, module_qualified_name)


class _ShapeRecorder(fx.Interpreter):
    """Runs a traced module and records the shape of every value."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[fx.Node, Shape | None] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        numbers = isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1
        self.found[n] = tuple(value.shape) if numbers else None
        return value


def trace(module: nn.Module, input_shape: Shape) -> list[Operation] | None:
    """The module's operations, from the input to the output (both included); None if it cannot be traced."""
    try:
        graph = _Tracer().trace(module)
        traced = fx.GraphModule(module, graph)
        shapes = _find_record_shapes(traced, input_shape)
    except Exception:  # a user's module may raise anything when it is traced
        return None
    if sum(node.op == "placeholder" for node in graph.nodes) != 1:
        return None
    made: dict[fx.Node, Operation] = {}
    operations: list[Operation] = []
    for node in graph.nodes:
        sources = {one: made[one] for one in node.all_input_nodes}
        name, layer = _find_layer(node, module, [one.shape for one in sources.values()], shapes[node])
        if isinstance(layer, nn.Identity):
            made[node] = made[node.all_input_nodes[0]]
            continue
        made[node] = Operation(node, name, layer, sources, shapes[node])
        operations.append(made[node])
        if _is_in_place(node, layer) and sources:
            # Later readers of the input read the output of this operation, which changed it in place.
            made[node.all_input_nodes[0]] = made[node]
    return _drop_unread(operations)


def _drop_unread(operations: list[Operation]) -> list[Operation]:
    """The input, and the operations that the output depends on.

    No gradient reaches the others, and compiled code would leave the gradients of their parameters unwritten.
    """
    entry, *_, exit_ = operations
    needed = {entry, exit_}
    for one in reversed(operations):
        if one in needed:
            needed.update(one.sources.values())
    return [one for one in operations if one in needed]


def _find_record_shapes(traced: fx.GraphModule, input_shape: Shape) -> dict[fx.Node, Shape | None]:
    """The shape of each value for one record; None for a value whose first axis is not the batch."""
    found = []
    for records in (2, 3):
        shapes = _ShapeRecorder(traced)
        with torch.no_grad():
            shapes.run(make_trial_records(input_shape, records))
        found.append({node: _drop_batch_axis(shape, records) for node, shape in shapes.found.items()})
    two, three = found
    return {node: shape if three[node] == shape else None for node, shape in two.items()}


def _drop_batch_axis(shape: Shape | None, records: int) -> Shape | None:
    return shape[1:] if shape is not None and shape[0] == records else None


def _is_in_place(node: fx.Node, layer: nn.Module | None) -> bool:
    named = isinstance(node.target, str) and node.op == "call_method" and node.target.endswith("_")
    asked = node.kwargs.get("inplace") is True or getattr(layer, "inplace", False) is True
    return named or asked or node.target in (operator.iadd, functional.relu_, torch.relu_)


_ACTIVATIONS: dict[type[nn.Module], tuple[Any, ...]] = {
    nn.ReLU: (torch.relu, torch.relu_, functional.relu, functional.relu_, "relu", "relu_"),
    nn.ReLU6: (functional.relu6,),
    nn.LeakyReLU: (functional.leaky_relu,),
    nn.GELU: (functional.gelu,),
    nn.SiLU: (functional.silu,),
    nn.Tanh: (torch.tanh, functional.tanh, "tanh"),
    nn.Sigmoid: (torch.sigmoid, functional.sigmoid, "sigmoid"),
    nn.ELU: (functional.elu,),
    nn.SELU: (torch.selu, functional.selu),
    nn.Identity: ("contiguous",),
}
_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_MEAN = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
# function or method -> the layer that computes the same, and the names of the arguments after the input
_FUNCTIONS: dict[Any, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    function: (kind, ("negative_slope",) if kind is nn.LeakyReLU else ("alpha",) if kind is nn.ELU else ())
    for kind, functions in _ACTIVATIONS.items()
    for function in functions
} | {
    functional.max_pool2d: (nn.MaxPool2d, _MAX),
    functional.max_pool1d: (nn.MaxPool1d, _MAX),
    torch.max_pool2d: (nn.MaxPool2d, _MAX),
    torch.max_pool1d: (nn.MaxPool1d, _MAX),
    functional.avg_pool2d: (nn.AvgPool2d, _MEAN),
    functional.avg_pool1d: (nn.AvgPool1d, _MEAN[:5]),
    functional.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, ("output_size",)),
    functional.adaptive_avg_pool1d: (nn.AdaptiveAvgPool1d, ("output_size",)),
}
_RESHAPES = (torch.flatten, torch.reshape, "flatten", "view", "reshape")


def _find_layer(
    node: fx.Node, module: nn.Module, inputs: list[Shape | None], output: Shape | None
) -> tuple[str, nn.Module | None]:
    """The layer's name in the module ("" for a function), and the layer that computes this node, None if none does."""
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        if isinstance(layer, nn.Flatten) and inputs == [output]:
            layer = nn.Identity()
        return str(node.target), layer if _is_called_plainly(node, layer) else None
    if node.op not in ("call_function", "call_method") or output is None or None in inputs[:1]:
        return "", None
    target: Any = node.target
    if target in _RESHAPES and inputs and inputs[0] is not None:
        whole = (prod(inputs[0]),)
        return "", nn.Identity() if output == inputs[0] else nn.Flatten() if output == whole else None
    if target in (operator.add, operator.iadd, torch.add, "add", "add_"):
        alike = len(node.args) == 2 and not node.kwargs and inputs == [output, output]
        return "", Add() if alike else None
    if target in (torch.cat, torch.concat):
        axis = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
        joined = node.args[0] if node.args else ()
        alike = isinstance(joined, list | tuple) and len(joined) == len(inputs) and None not in inputs
        return "", Concatenate() if alike and axis in (1, -len(output)) else None
    if target in (torch.mean, "mean"):
        return "", _make_mean_layer(node, inputs[0], output)
    return "", _make_layer_for_function(node)


def _is_called_plainly(node: fx.Node, layer: nn.Module) -> bool:
    """Whether the layer is called with one input and has no hooks."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks
    return len(node.args) == 1 and isinstance(node.args[0], fx.Node) and not node.kwargs and not hooked


def _make_mean_layer(node: fx.Node, shape: Shape | None, output: Shape) -> nn.Module | None:
    named = {"dim": node.args[1] if len(node.args) > 1 else None, **node.kwargs}
    axes = named["dim"] if isinstance(named["dim"], list | tuple) else [named["dim"]]
    if shape is None or len(shape) < 2 or named.keys() - {"dim", "keepdim"}:
        return None
    everywhere = set(range(2, len(shape) + 1))
    asked = {axis % (len(shape) + 1) for axis in axes if isinstance(axis, int)}
    if asked != everywhere or len(axes) != len(everywhere):
        return None
    return SpatialMean()


def _make_layer_for_function(node: fx.Node) -> nn.Module | None:
    """A layer that computes the same as the function called by this node; None if none is known."""
    if node.target not in _FUNCTIONS or len(node.all_input_nodes) != 1:
        return None
    kind, names = _FUNCTIONS[node.target]
    given = dict(zip(names, node.args[1:], strict=False)) | dict(node.kwargs)
    options = {name: value for name, value in given.items() if name != "inplace"}
    return kind(**options) if len(node.args[1:]) <= len(names) or not names else None
