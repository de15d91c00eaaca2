"""Regions: parts of a traced module that have no blocks. PyTorch computes them, by `vmap` or client by client."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from fedlog.engine.training.block.generic import call_stacked
from fedlog.engine.training.block.network import Masks, Params, Shape
from fedlog.engine.training.block.trace import Operation
from fedlog.models.masked_dropout import MaskedLayer, collect_parameters


@dataclass(frozen=True, eq=False)
class Region:
    """A part of a module, and where it meets the rest of the module.

    `inputs` are the operations outside of the part whose results it uses. `outputs` are those of its own operations
    whose results are used outside.
    """

    module: fx.GraphModule
    inputs: tuple[Operation, ...]
    outputs: tuple[Operation, ...]
    names: tuple[str, ...]
    """What it computes: layers with their types, and functions; for the user to read."""


@dataclass(frozen=True, eq=False)
class RegionStage:
    """A region (a part of a body that has no block) as a stage of a stacked network; PyTorch computes it."""

    module: fx.GraphModule
    names: tuple[str, ...]  # the names of its parameters and running statistics
    dropouts: tuple[str, ...]  # the names of its dropout layers
    stacked: bool  # True: by vmap; False: one client after another

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> tuple[Tensor, ...]:
        """Compute all outputs of the region, as vectors or as maps."""
        clients = values[0].shape[0]
        inputs = [value if value.ndim == 3 else value.movedim(-1, 1) for value in values]
        own = {name: params[name] for name in self.names}
        own = {n: v if v.shape[0] == clients else v.expand(clients, *v.shape[1:]) for n, v in own.items()}
        if masks is not None:
            own |= {f"{site}.mask": masks[site] for site in self.dropouts}
        if self.stacked:
            found = call_stacked(self._run_one_client, own, inputs)
        else:
            each = [
                self._run_one_client({name: value[at] for name, value in own.items()}, [value[at] for value in inputs])
                for at in range(clients)
            ]
            found = tuple(torch.stack(parts) for parts in zip(*each, strict=True))
        return tuple(value if value.ndim == 3 else value.movedim(1, -1).contiguous() for value in found)

    def _run_one_client(self, params: dict[str, Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.functional_call(self.module, params, tuple(inputs))
        return found


def extract_region(root: nn.Module, part: list[Operation], all_operations: list[Operation]) -> Region:
    """The region with the operations `part`, and with what they need that has no batch axis, such as weights."""
    inside = set(part)
    needed: list[Operation] = []
    for one in part:
        _collect_needed(one, inside, needed)
    inputs = [one for one in needed if one not in inside and one.shape is not None]
    outputs = [one for one in part if any(one in other.reads for other in all_operations if other not in inside)]
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {one.node: graph.placeholder(one.node.name) for one in inputs}
    for one in needed:
        if one.node not in copies:
            copies[one.node] = graph.node_copy(one.node, _make_copy_lookup(one, copies))
    graph.output(tuple(copies[one.node] for one in outputs))
    # Besides `part`, layers whose output is not a tensor of records, such as that of an LSTM.
    named = [one for one in needed if one in inside or (one.node.op == "call_module" and one not in inputs)]
    return Region(
        fx.GraphModule(root, graph), tuple(inputs), tuple(outputs), tuple(_describe(root, one) for one in named)
    )


def _describe(root: nn.Module, one: Operation) -> str:
    """The operation as the user knows it: a layer's name and type, or the function."""
    if one.node.op != "call_module":
        return one.node.name
    return f"{one.node.target} ({type(root.get_submodule(str(one.node.target))).__name__})"


def _make_copy_lookup(one: Operation, copies: dict[fx.Node, fx.Node]) -> Callable[[fx.Node], fx.Node]:
    """A function that returns the copy, in the region, of a node that this operation reads."""
    sources = one.sources
    return lambda node: copies[sources[node].node]


def _collect_needed(one: Operation, inside: set[Operation], needed: list[Operation]) -> None:
    """Add an operation to `needed`, after the operations that it reads; of an input of the region, add only itself."""
    if one in needed:
        return
    if one in inside or one.shape is None:
        for read in one.sources.values():
            _collect_needed(read, inside, needed)
    needed.append(one)


def make_region_stage(region: Region, input_shapes: list[Shape]) -> RegionStage:
    """The region as a stage, computed by `vmap` if that gives the same result as one client after another."""
    module = region.module
    values = collect_parameters(module)
    dropouts = tuple(name for name, layer in module.named_modules() if isinstance(layer, MaskedLayer))
    stacked = RegionStage(module, tuple(values), dropouts, stacked=True)
    one_by_one = RegionStage(module, tuple(values), dropouts, stacked=False)
    params = {name: torch.stack([value, 0.9 * value]) for name, value in values.items()}
    generator = torch.Generator().manual_seed(0)
    sizes = [(2, 3, *shape) if len(shape) == 1 else (2, *shape, 3) for shape in input_shapes]
    inputs = [torch.rand(size, generator=generator) for size in sizes]
    try:
        # A module made by torch.fx prints the line that fails.
        with torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            pairs = zip(stacked(params, None, *inputs), one_by_one(params, None, *inputs), strict=True)
            same = all(torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) for a, b in pairs)
    except (RuntimeError, ValueError):
        same = False
    return stacked if same else one_by_one
