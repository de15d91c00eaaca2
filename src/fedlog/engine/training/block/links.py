"""The layers that a chain (neighbouring layers computed by one call) can have, as steps of compiled code.

A `Link` adds the steps of its layer to a program, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod

import torch
from torch.nn import functional

from fedlog.engine.training.block import convolve, library, map_passes
from fedlog.engine.training.block.chain import Buffer, ChainStage, LayerMemory, Link, Program, UnitSizes
from fedlog.engine.training.block.conv_stages import ConvStage
from fedlog.engine.training.block.linear import LinearSizes
from fedlog.engine.training.block.map_passes import make_norm_sizes_and_scratch_size, make_pooling_sizes
from fedlog.engine.training.block.map_stages import MapNormStage, PoolStage, SpatialMeanStage, UnitNormStage
from fedlog.engine.training.block.network import (
    Shape,
    Stage,
    StageCall,
    find_repeated_layers,
    name_weight_and_bias,
)
from fedlog.engine.training.block.stages import AddStage, ElementwiseStage, FlattenStage, LinearStage

Gradients = list[Buffer | None]
Needs = tuple[bool, ...]
_RELU, _GELU = 0, 1  # the kinds of activations in units_passes.h


def make_link(stage: Stage) -> Link | None:
    """The layer as a link of a chain (neighbouring layers that one compiled call computes); None if not possible."""
    if not library.AVAILABLE:
        return None
    match stage:
        case ConvStage(dropout=()):
            return ConvLink(stage)
        case MapNormStage():
            return NormLink(stage)
        case PoolStage():
            return PoolLink(stage)
        case UnitNormStage():
            return UnitNormLink(stage)
        case LinearStage(compiled=True, dropout=()):
            return LinearLink(stage)
        case SpatialMeanStage():
            return MeanLink(stage)
        case FlattenStage():
            return FlattenLink()
        case AddStage():
            return AddLink(stage)
        case ElementwiseStage(function=torch.relu):
            return ActivationLink(_RELU)
        case ElementwiseStage(function=partial(func=functional.gelu, keywords={"approximate": "none"})):
            return ActivationLink(_GELU)
    return None


def join_chains(steps: list[StageCall], shapes: dict[int, Shape], output: int) -> list[StageCall]:
    """The steps of a network with neighbouring layers joined into chains where possible."""
    joined: list[StageCall] = []
    repeated = find_repeated_layers(steps)

    def can_join(step: StageCall) -> bool:
        return make_link(step.stage) is not None and getattr(step.stage, "name", None) not in repeated

    for linked, group in groupby(steps, can_join):
        calls = tuple(group)
        if not linked or len(calls) < 2:
            joined += calls
            continue
        made = {at for call in calls for at in call.writes}
        elsewhere = {at for step in steps if step not in calls for at in step.reads} | {output}
        reads = tuple(dict.fromkeys(at for call in calls for at in call.reads if at not in made))
        writes = tuple(at for call in calls for at in call.writes if at in elsewhere)
        links = tuple(link for call in calls if (link := make_link(call.stage)) is not None)
        own = {at: shapes[at] for at in (*reads, *made)}
        kept = frozenset(at for call in calls for at in _find_slots_read_backward(call))
        joined.append(StageCall(ChainStage(links, calls, own, reads, writes, kept), reads, writes))
    return joined


def _find_slots_read_backward(call: StageCall) -> tuple[int, ...]:
    """The slots whose values the backward computation of the layer reads."""
    match call.stage:
        case PoolStage() | SpatialMeanStage() | FlattenStage() | AddStage(rectify=False):
            return ()
        case AddStage():
            return call.writes
        case LinearStage(rectify=True):
            return (*call.reads, *call.writes)
    return call.reads


def _reserve_if_needed(program: Program, needed: bool, like: Buffer) -> Buffer | None:
    return program.reserve_temporary(like.size) if needed else None


@dataclass(frozen=True)
class _LinkWithParameters:
    """A layer that may have a weight and a bias."""

    stage: ConvStage | MapNormStage | UnitNormStage | LinearStage

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the layer's weight and bias."""
        return name_weight_and_bias(self.stage.name)


class _LinkWithoutParameters:
    """A layer that has no parameters."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConvLink(_LinkWithParameters):
    """A convolution, then pooling and ReLU as in `stage.shape`."""

    stage: ConvStage

    def forward(self, program: Program, memory: LayerMemory) -> None:
        """Add a step that convolves, and that stores the position of each pooling window's maximum for `backward`."""
        sizes, room = convolve.make_conv_sizes_and_scratch_size(self.stage.shape, 1, memory.batch)
        keeps = program.keeps and self.stage.shape.keeps_pool_winners
        memory.kept.extend([program.reserve_value(memory.output.size)] if keeps else [])
        winners = memory.kept[0] if keeps else None
        buffers = (*memory.inputs, *memory.params, memory.output, winners, program.reserve_scratch(room))
        program.add_call("convolve_forward", sizes, *buffers)

    def backward(
        self, program: Program, memory: LayerMemory, gradient: Buffer, needs: Needs, param_gradients: Gradients
    ) -> Gradients:
        """Add the steps that compute the gradients of the inputs, the weight and the bias."""
        sizes, room = convolve.make_conv_sizes_and_scratch_size(self.stage.shape, 1, memory.batch)
        winners = memory.kept[0] if memory.kept else None
        of_inputs = _reserve_if_needed(program, needs[0], memory.inputs[0])
        buffers = (
            *memory.inputs,
            memory.params[0],
            winners,
            gradient,
            of_inputs,
            *param_gradients,
            program.reserve_scratch(room),
        )
        program.add_call("convolve_backward", sizes, *buffers)
        return [of_inputs]


@dataclass(frozen=True)
class NormLink(_LinkWithParameters):
    """A normalisation of maps, then pooling and ReLU as in `stage.shape`."""

    stage: MapNormStage

    def forward(self, program: Program, memory: LayerMemory) -> None:
        """Add a step that normalises, and that stores means, scales and positions of maxima for `backward`."""
        sizes, room = make_norm_sizes_and_scratch_size(self.stage.shape, 1, memory.batch)
        memory.kept.extend(program.reserve_value(self.stage.shape.groups * memory.batch) for _ in range(2))
        if program.keeps and self.stage.shape.has_pooling:
            memory.kept.append(program.reserve_value(memory.output.size))
        winners = memory.kept[2] if len(memory.kept) > 2 else None
        buffers = (
            *memory.inputs,
            *memory.params,
            memory.output,
            *memory.kept[:2],
            winners,
            program.reserve_scratch(room),
        )
        program.add_call("norm_forward", sizes, *buffers)

    def backward(
        self, program: Program, memory: LayerMemory, gradient: Buffer, needs: Needs, param_gradients: Gradients
    ) -> Gradients:
        """Add the steps that compute the gradients of the inputs, the weight and the bias."""
        sizes, room = make_norm_sizes_and_scratch_size(self.stage.shape, 1, memory.batch)
        winners = memory.kept[2] if len(memory.kept) > 2 else None
        of_inputs = _reserve_if_needed(program, needs[0], memory.inputs[0])
        read = (*memory.inputs, *memory.params, *memory.kept[:2], winners, gradient)
        program.add_call("norm_backward", sizes, *read, of_inputs, *param_gradients, program.reserve_scratch(room))
        return [of_inputs]


@dataclass(frozen=True)
class PoolLink(_LinkWithoutParameters):
    """Pooling: the maximum or the mean over windows."""

    stage: PoolStage

    def forward(self, program: Program, memory: LayerMemory) -> None:
        """Add a step that pools, and that stores the position of each maximum for `backward`."""
        if self.stage.windows.divisors is None:
            memory.kept.append(program.reserve_value(memory.output.size))
        winners = memory.kept[0] if memory.kept else None
        program.add_call("pool_forward", self._make_sizes(memory), *memory.inputs, memory.output, winners)

    def backward(
        self, program: Program, memory: LayerMemory, gradient: Buffer, needs: Needs, param_gradients: Gradients
    ) -> Gradients:
        """Add the steps that compute the gradient of the inputs."""
        of_inputs = program.reserve_temporary(memory.inputs[0].size)
        program.add_call(
            "pool_backward", self._make_sizes(memory), gradient, memory.kept[0] if memory.kept else None, of_inputs
        )
        return [of_inputs]

    def _make_sizes(self, memory: LayerMemory) -> map_passes.PoolingSizes:
        return make_pooling_sizes(self.stage.windows, memory.shapes[0][0], memory.batch)


@dataclass(frozen=True)
class UnitNormLink(_LinkWithParameters):
    """A normalisation of vectors, such as LayerNorm after a linear layer."""

    stage: UnitNormStage

    def forward(self, program: Program, memory: LayerMemory) -> None:
        """Add a step that normalises, and that stores means and scales for `backward`."""
        memory.kept.extend(program.reserve_value(self.stage.groups * memory.batch) for _ in range(2))
        program.add_call(
            "unit_norm_forward", self._make_sizes(memory), *memory.inputs, *memory.params, memory.output, *memory.kept
        )

    def backward(
        self, program: Program, memory: LayerMemory, gradient: Buffer, needs: Needs, param_gradients: Gradients
    ) -> Gradients:
        """Add the steps that compute the gradients of the inputs, the weight and the bias."""
        of_inputs = _reserve_if_needed(program, needs[0], memory.inputs[0])
        read = (*memory.inputs, memory.params[0], *memory.kept, gradient)
        scratch = program.reserve_scratch(memory.shapes[0][0])
        program.add_call("unit_norm_backward", self._make_sizes(memory), *read, of_inputs, *param_gradients, scratch)
        return [of_inputs]

    def _make_sizes(self, memory: LayerMemory) -> UnitSizes:
        groups = self.stage.groups
        return UnitSizes(memory.batch, groups, memory.shapes[0][0] // groups, 0, self.stage.epsilon)


@dataclass(frozen=True)
class LinearLink(_LinkWithParameters):
    """A linear layer, then ReLU if `stage.rectify`."""

    stage: LinearStage

    def forward(self, program: Program, memory: LayerMemory) -> None:
        """Add a step that multiplies by the weight, adds the bias, and applies ReLU if `stage.rectify`."""
        program.add_call("linear_forward", self._make_sizes(memory), *memory.inputs, *memory.params, memory.output)

    def backward(
        self, program: Program, memory: LayerMemory, gradient: Buffer, needs: Needs, param_gradients: Gradients
    ) -> Gradients:
        """Add the steps that compute the gradients of the inputs, the weight and the bias."""
        of_inputs = _reserve_if_needed(program, needs[0], memory.inputs[0])
        outputs = memory.output if self.stage.rectify else None
        read = (*memory.inputs, memory.params[0], outputs, gradient)
        program.add_call(
            "linear_backward",
            self._make_sizes(memory),
            *read,
            of_inputs,
            *param_gradients,
            program.reserve_scratch(gradient.size),
        )
        return [of_inputs]

    def _make_sizes(self, memory: LayerMemory) -> LinearSizes:
        units = memory.output.size // memory.batch
        return LinearSizes(1, memory.batch, memory.shapes[0][0], units, int(self.stage.rectify))


@dataclass(frozen=True)
class MeanLink(_LinkWithoutParameters):
    """The mean of every channel over all its pixels, as vectors or as maps of one pixel."""

    stage: SpatialMeanStage

    def forward(self, program: Program, memory: LayerMemory) -> None:
        """Add steps that average the pixels, then transpose (channels, batch) to (batch, channels)."""
        channels, *space = memory.shapes[0]
        extent = UnitSizes(channels, prod(space), memory.batch, 0, 0.0)
        if self.stage.keeps_axes:
            program.add_call("mean_forward", extent, *memory.inputs, memory.output)
            return
        means = program.reserve_temporary(memory.output.size)
        program.add_call("mean_forward", extent, *memory.inputs, means)
        program.add_call("turn_over", UnitSizes(channels, memory.batch, 0, 0, 0.0), means, memory.output)

    def backward(
        self, program: Program, memory: LayerMemory, gradient: Buffer, needs: Needs, param_gradients: Gradients
    ) -> Gradients:
        """Add the steps that compute the gradient of the inputs."""
        channels, *space = memory.shapes[0]
        if not self.stage.keeps_axes:
            units, gradient = gradient, program.reserve_temporary(gradient.size)
            program.add_call("turn_over", UnitSizes(memory.batch, channels, 0, 0, 0.0), units, gradient)
        of_inputs = program.reserve_temporary(memory.inputs[0].size)
        program.add_call("mean_backward", UnitSizes(channels, prod(space), memory.batch, 0, 0.0), gradient, of_inputs)
        return [of_inputs]


@dataclass(frozen=True)
class FlattenLink(_LinkWithoutParameters):
    """Flattening, which transposes each client's maps (units, batch) to vectors (batch, units)."""

    def forward(self, program: Program, memory: LayerMemory) -> None:
        """Add a step that transposes (units, batch) to (batch, units)."""
        extent = UnitSizes(prod(memory.shapes[0]), memory.batch, 0, 0, 0.0)
        program.add_call("turn_over", extent, *memory.inputs, memory.output)

    def backward(
        self, program: Program, memory: LayerMemory, gradient: Buffer, needs: Needs, param_gradients: Gradients
    ) -> Gradients:
        """Add a step that transposes the gradient (batch, units) to (units, batch)."""
        of_inputs = program.reserve_temporary(gradient.size)
        program.add_call("turn_over", UnitSizes(memory.batch, prod(memory.shapes[0]), 0, 0, 0.0), gradient, of_inputs)
        return [of_inputs]


@dataclass(frozen=True)
class AddLink(_LinkWithoutParameters):
    """The sum of two values, then ReLU if `stage.rectify`."""

    stage: AddStage

    def forward(self, program: Program, memory: LayerMemory) -> None:
        """Add a step that sums the two values, and applies ReLU if `stage.rectify`."""
        one, other = memory.inputs if len(memory.inputs) == 2 else (*memory.inputs, *memory.inputs)
        program.add_call("sum_forward", self._make_sizes(memory), one, other, memory.output)

    def backward(
        self, program: Program, memory: LayerMemory, gradient: Buffer, needs: Needs, param_gradients: Gradients
    ) -> Gradients:
        """Return the gradients of the two values, which are the same."""
        if self.stage.rectify:
            given, gradient = gradient, program.reserve_temporary(gradient.size)
            program.add_call("sum_backward", self._make_sizes(memory), memory.output, given, gradient)
        return [gradient if needed else None for needed in needs]

    def _make_sizes(self, memory: LayerMemory) -> UnitSizes:
        return UnitSizes(memory.output.size, 0, 0, int(self.stage.rectify), 0.0)


@dataclass(frozen=True)
class ActivationLink(_LinkWithoutParameters):
    """An activation (ReLU or GELU) of every number."""

    kind: int

    def forward(self, program: Program, memory: LayerMemory) -> None:
        """Add a step that applies the activation."""
        program.add_call("activate", self._make_sizes(memory), *memory.inputs, None, memory.output)

    def backward(
        self, program: Program, memory: LayerMemory, gradient: Buffer, needs: Needs, param_gradients: Gradients
    ) -> Gradients:
        """Add the steps that compute the gradient of the inputs."""
        of_inputs = program.reserve_temporary(gradient.size)
        program.add_call("activate", self._make_sizes(memory), *memory.inputs, gradient, of_inputs)
        return [of_inputs]

    def _make_sizes(self, memory: LayerMemory) -> UnitSizes:
        return UnitSizes(memory.output.size, 0, 0, self.kind, 0.0)
