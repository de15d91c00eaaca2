"""Chains: neighbouring layers that one call of `chain.c` computes, client after client, forward or backward.

This is fast because a client's values are read again while they are still in the processor's cache, and because Python
makes two calls for each batch instead of two for each layer. The memory of values that no backward pass reads (in
evaluation: of all values) is used again for later values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fedlog.engine.training.block import library
from fedlog.engine.training.block.library import NUMBER, get_scratch_space
from fedlog.engine.training.block.network import Masks, Params, Shape, StageCall, get_parameter

TENSORS = 12  # of a step, the same in chain.c
WORKSPACE, TAPE = 0, 1  # the bases that every program has: temporary values, and those kept for the backward pass
_LINE = 16  # values begin at multiples of so many numbers


class _Step(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("bases", ctypes.c_int64 * TENSORS),
        ("offsets", ctypes.c_int64 * TENSORS),
    ]


@dataclass(eq=False)
class Buffer:
    """The place of one value of one client in memory: `size` numbers, `offset` numbers after the start of a tensor.

    `base` says which tensor: 0 is the workspace, and 1, 2, ... are the tensors that `Program.run` is given. In the
    workspace, the place of a value that is no longer needed is given to a later value.
    """

    size: int
    base: int = WORKSPACE
    offset: int = 0


@dataclass(frozen=True, eq=False)
class LayerMemory:
    """Where the inputs, parameters and output of one layer of a chain lie in memory, for one client."""

    batch: int
    shapes: tuple[Shape, ...]  # of one record, of each input
    inputs: tuple[Buffer, ...]
    params: tuple[Buffer | None, ...]  # in the order of the link's names
    output: Buffer
    kept: list[Buffer] = field(default_factory=list)  # what else the backward pass reads


class Link(Protocol):
    """One layer of a chain (neighbouring layers that one compiled call computes); it adds its steps to a program."""

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of the parameters that the layer may have."""

    def forward(self, program: Program, memory: LayerMemory) -> None:
        """Add the steps that compute the output; list in `memory.kept` all other values that `backward` needs."""

    def backward(
        self,
        program: Program,
        memory: LayerMemory,
        gradient: Buffer,
        needs: tuple[bool, ...],
        param_gradients: list[Buffer | None],
    ) -> list[Buffer | None]:
        """Add the steps that compute the gradients to the program, given the `gradient` of the output.

        Return the gradient of each input; where `needs` is False, it may be None. Gradients of parameters are written
        to the buffers in `param_gradients`; None there stands for a gradient that is not needed.
        """


class Program:
    """A list of compiled steps that are run for one client after another, and the memory that they need.

    With `keeps`, values that a backward pass reads are kept. If the backward pass is another program, they are kept on
    the tape, a tensor that is given to that program. If it is part of this program (`has_tape` is False), they are kept
    in the workspace.
    """

    def __init__(self, dtype: torch.dtype, keeps: bool, has_tape: bool = True) -> None:
        self.keeps = keeps
        self._has_tape = has_tape
        self.tape_size = 0
        self._dtype = dtype
        self._calls: list[tuple[str, ctypes.Structure, list[Buffer | None]]] = []
        self._scratch = Buffer(0)
        self._steps: Any = None

    def reserve_temporary(self, size: int) -> Buffer:
        """Reserve memory for a value that is read only by steps of this program."""
        return Buffer(size)

    def reserve_value(self, size: int) -> Buffer:
        """Reserve memory for a value that the backward pass may read."""
        if not self.keeps or not self._has_tape:
            return self.reserve_temporary(size)
        made = Buffer(size, TAPE, self.tape_size)
        self.tape_size += _round_up_to_cache_lines(size)
        return made

    def reserve_scratch(self, size: int) -> Buffer:
        """Reserve memory that a single step uses; all steps share it."""
        self._scratch.size = max(self._scratch.size, size)
        return self._scratch

    def add_call(self, name: str, sizes: ctypes.Structure, *buffers: Buffer | None) -> None:
        """Add a step: the compiled function of this name, with its sizes and its tensors in order."""
        self._calls.append((name, sizes, list(buffers)))

    def run(self, clients: int, bases: Sequence[Tensor | None]) -> None:
        """Run all steps for each client; `bases` are the tensors 1, 2, ... of `Buffer.base`."""
        if self._steps is None:
            self._steps = self._compile()
        workspace = get_scratch_space(self._scratch.offset + self._scratch.size, self._dtype)
        addresses = (ctypes.c_void_p * (1 + len(bases)))(
            workspace.data_ptr(), *(None if base is None else base.data_ptr() for base in bases)
        )
        strides = (ctypes.c_int64 * (1 + len(bases)))(
            0,
            *(0 if base is None or base.shape[0] == 1 else base.stride(0) * base.element_size() for base in bases),
        )
        library.LIBRARY.chain_run(
            self._steps, ctypes.c_int64(len(self._calls)), ctypes.c_int64(clients), addresses, strides
        )

    def _compile(self) -> Any:
        self._place_temporaries()
        size = torch.empty(0, dtype=self._dtype).element_size()
        steps = (_Step * len(self._calls))()
        for step, (name, sizes, buffers) in zip(steps, self._calls, strict=True):
            function = getattr(library.LIBRARY, f"step_{name}_{NUMBER[self._dtype]}")
            step.function = ctypes.cast(function, ctypes.c_void_p).value
            step.sizes = ctypes.addressof(sizes)  # which `_calls` keeps alive
            for at in range(TENSORS):
                buffer = buffers[at] if at < len(buffers) else None
                step.bases[at] = -1 if buffer is None else buffer.base
                step.offsets[at] = 0 if buffer is None else buffer.offset * size
        return steps

    def _place_temporaries(self) -> None:
        """Give each temporary value the lowest memory that is free from its first step to its last."""
        spans: dict[Buffer, tuple[int, int]] = {}
        for at, (_, _, buffers) in enumerate(self._calls):
            for buffer in buffers:
                if buffer is not None and buffer.base == WORKSPACE and buffer is not self._scratch:
                    spans[buffer] = (spans.get(buffer, (at, at))[0], at)
        placed: list[Buffer] = []
        for buffer, (first, last) in sorted(spans.items(), key=lambda item: item[1][0]):
            beside = [one for one in placed if spans[one][1] >= first and spans[one][0] <= last]
            starts = [0, *(_round_up_to_cache_lines(one.offset + one.size) for one in beside)]
            buffer.offset = next(
                start
                for start in sorted(starts)
                if all(start + buffer.size <= one.offset or start >= one.offset + one.size for one in beside)
            )
            placed.append(buffer)
        self._scratch.offset = _round_up_to_cache_lines(max((one.offset + one.size for one in placed), default=0))


def _round_up_to_cache_lines(size: int) -> int:
    return -(-size // _LINE) * _LINE


@dataclass(frozen=True, eq=False)
class _ChainPrograms:
    """The forward and backward programs of a chain for one batch size."""

    forward: Program
    backward: Program | None


@dataclass(frozen=True)
class _ChainProgramsKey:
    """What a chain's programs depend on: the batch size, the parameters that exist, and what needs a gradient."""

    batch: int
    dtype: torch.dtype
    names: tuple[str, ...]
    input_needs: tuple[bool, ...]
    param_needs: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class ChainStage:
    """Neighbouring layers that one compiled call computes; each value between layers has a number (its slot)."""

    links: tuple[Link, ...]
    calls: tuple[StageCall, ...]  # of each link
    shapes: dict[int, Shape]  # of one record in each slot
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    kept: frozenset[int]  # the slots that backward passes read
    programs: dict[_ChainProgramsKey, _ChainPrograms] = field(default_factory=dict)

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Compute the chain, and return those of its values that layers outside of it read."""
        clients = values[0].shape[0]
        names = self.list_names_in(params)
        tensors = [*values, *(get_parameter("", name, params, clients) for name in names)]
        if torch.is_grad_enabled():
            found: tuple[Tensor, ...] = _ChainFunction.apply(self, names, *tensors)  # type: ignore[no-untyped-call]
        else:
            needs = (False,) * len(tensors)
            found = self.compute(
                self.get_programs(names, tensors, needs), [_make_clients_contiguous(one) for one in tensors]
            )[0]
        return found[0] if len(found) == 1 else found

    def list_names_in(self, params: Params) -> tuple[str, ...]:
        """The names of the chain's parameters that are in `params`."""
        return tuple(name for link in self.links for name in link.names if name in params)

    def get_programs(self, names: tuple[str, ...], tensors: Sequence[Tensor], needs: Sequence[bool]) -> _ChainPrograms:
        """The forward and backward programs for these tensors (the chain's inputs, then parameters), from a cache."""
        batch = self._read_batch_size(tensors[0])
        split = len(self.reads)
        key = _ChainProgramsKey(batch, tensors[0].dtype, names, tuple(needs[:split]), tuple(needs[split:]))
        if key not in self.programs:
            self.programs[key] = _write_programs(self, key)
        return self.programs[key]

    def compute(self, programs: _ChainPrograms, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """The chain's outputs, and the tensor of values kept for the backward pass (None if there is none)."""
        clients, batch = tensors[0].shape[0], self._read_batch_size(tensors[0])
        shapes = [self.shapes[slot] for slot in self.writes]
        outputs = tuple(
            tensors[0].new_empty((clients, batch, *shape) if len(shape) == 1 else (clients, *shape, batch))
            for shape in shapes
        )
        tape = tensors[0].new_empty(clients, programs.forward.tape_size) if programs.backward is not None else None
        programs.forward.run(clients, (tape, *tensors, *outputs))
        return outputs, tape

    def compute_slot_sizes(self, batch: int) -> dict[int, int]:
        """The size of the value in each slot, for one client's batch."""
        return {slot: prod(shape) * batch for slot, shape in self.shapes.items()}

    def _read_batch_size(self, value: Tensor) -> int:
        return value.shape[1] if len(self.shapes[self.reads[0]]) == 1 else value.shape[-1]


class _ChainFunction(Function):
    @staticmethod
    def forward(ctx: Any, stage: ChainStage, names: tuple[str, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.needs = ctx.needs_input_grad[2:]
        ctx.programs = stage.get_programs(names, tensors, ctx.needs)
        own = [_make_clients_contiguous(one) for one in tensors]
        outputs, tape = stage.compute(ctx.programs, own)
        ctx.save_for_backward(tape, *own, *outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the chain's inputs and parameters; None for those that need none."""
        return None, None, *_run_backward(ctx.programs, ctx.saved_tensors, ctx.needs, gradients)


def _run_backward(
    programs: _ChainPrograms, saved: Sequence[Tensor], needs: Sequence[bool], gradients: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of the chain's inputs and parameters; None for those that need none.

    `saved` are the kept values, then the chain's inputs, parameters and outputs.
    """
    tape, *others = saved
    found = [
        one.new_empty(one.shape) if needed else None for one, needed in zip(others[: len(needs)], needs, strict=True)
    ]
    assert programs.backward is not None
    given = [gradient.contiguous() for gradient in gradients]
    programs.backward.run(len(given[0]), (tape, *others, *given, *found))
    return found


@dataclass(frozen=True, eq=False)
class SavedChainValues:
    """What the backward pass of a chain needs from the forward pass of a batch."""

    programs: _ChainPrograms
    names: tuple[str, ...]
    needs: tuple[bool, ...]
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class ChainPasses:
    """The forward and backward pass, without autograd, of a chain: a body whose layers run in one compiled call."""

    stage: ChainStage

    def forward(self, params: Params, batch: Tensor, masks: Masks) -> tuple[Tensor, SavedChainValues | None]:
        """The features (clients, batch, width), and what `backward` needs; None if no parameter needs a gradient."""
        clients = batch.shape[0]
        names = self.stage.list_names_in(params)
        tensors = [batch, *(get_parameter("", name, params, clients) for name in names)]
        needs = (False, *(params[name].requires_grad for name in names))
        programs = self.stage.get_programs(names, tensors, needs)
        own = [_make_clients_contiguous(one) for one in tensors]
        (features,), tape = self.stage.compute(programs, own)
        if tape is None:
            return features, None
        return features, SavedChainValues(programs, names, needs, (tape, *own, features))

    def evaluate(self, params: Params, batch: Tensor) -> Tensor:
        """The features (clients, batch, width) in evaluation; nothing is kept. Call it without autograd."""
        features = self.stage(params, None, batch)
        assert isinstance(features, Tensor)
        return features

    def backward(
        self, saved: SavedChainValues | None, gradient: Tensor, trained: Collection[str]
    ) -> dict[str, Tensor | None]:
        """The gradients of the parameters in `trained`, from the gradient of the features."""
        if saved is None:
            return {}
        _, *found = _run_backward(saved.programs, saved.tensors, saved.needs, [gradient])
        return {name: one for name, one in zip(saved.names, found, strict=True) if name in trained}


def _make_clients_contiguous(tensor: Tensor) -> Tensor:
    """The tensor with each client's values contiguous in memory; it is copied only if they are not."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


def _write_programs(stage: ChainStage, key: _ChainProgramsKey) -> _ChainPrograms:
    """Write a chain's forward and backward programs.

    Buffers refer to these tensors: workspace, kept values, inputs, parameters, outputs, then the gradients of outputs,
    inputs and parameters.
    """
    needs_gradient = any((*key.input_needs, *key.param_needs))
    forward = Program(key.dtype, needs_gradient)
    bases = count(TAPE + 1)
    sizes = stage.compute_slot_sizes(key.batch)
    values = {slot: Buffer(sizes[slot], next(bases)) for slot in stage.reads}
    params = {name: Buffer(0, next(bases)) for name in key.names}
    values |= {slot: Buffer(sizes[slot], next(bases)) for slot in stage.writes}
    memories = write_forward(stage, forward, key.batch, values, params)
    if not needs_gradient:
        return _ChainPrograms(forward, None)
    backward = Program(key.dtype, keeps=False)
    gradients: dict[int, Buffer | None] = {slot: Buffer(sizes[slot], next(bases)) for slot in stage.writes}
    input_gradients = {slot: Buffer(sizes[slot], next(bases)) for slot in stage.reads}
    every = {name: Buffer(0, next(bases)) for name in key.names}
    needed_slots = {slot for slot, needed in zip(stage.reads, key.input_needs, strict=True) if needed}
    param_gradients = {name: every[name] for name, needed in zip(key.names, key.param_needs, strict=True) if needed}
    write_backward(stage, backward, memories, gradients, param_gradients, needed_slots)
    for slot in stage.reads:
        if slot in needed_slots:
            add_copy_step(backward, gradients.get(slot), input_gradients[slot])
    return _ChainPrograms(forward, backward)


def write_forward(
    stage: ChainStage, program: Program, batch: int, values: dict[int, Buffer], params: Mapping[str, Buffer]
) -> list[LayerMemory]:
    """Add a chain's forward steps to a program, and return where the values of each layer lie.

    `values` says where the values of some slots lie. For the other slots, memory is reserved and entered there.
    """
    sizes, memories = stage.compute_slot_sizes(batch), []
    for link, call in zip(stage.links, stage.calls, strict=True):
        (slot,) = call.writes
        if slot not in values:
            values[slot] = (
                program.reserve_value(sizes[slot]) if slot in stage.kept else program.reserve_temporary(sizes[slot])
            )
        inputs = tuple(values[at] for at in call.reads)
        shapes = tuple(stage.shapes[at] for at in call.reads)
        memories.append(
            LayerMemory(batch, shapes, inputs, tuple(params.get(name) for name in link.names), values[slot])
        )
        link.forward(program, memories[-1])
    return memories


def write_backward(
    stage: ChainStage,
    program: Program,
    memories: Sequence[LayerMemory],
    gradients: dict[int, Buffer | None],
    param_gradients: Mapping[str, Buffer],
    needed_slots: set[int],
    after_gradient: Callable[[str], None] = lambda name: None,
) -> None:
    """Add a chain's backward steps to a program.

    `gradients` says where the gradients of the outputs lie; the gradients of inputs in `needed_slots` are entered there
    too. `param_gradients` says where to write the gradient of each trained parameter. `after_gradient` is called with a
    parameter's name as soon as the steps that compute its gradient are added.
    """
    needed_slots = set(needed_slots)
    for link, call in zip(stage.links, stage.calls, strict=True):
        if needed_slots & {*call.reads} or param_gradients.keys() & {*link.names}:
            needed_slots |= {*call.writes}
    for link, call, memory in reversed(list(zip(stage.links, stage.calls, memories, strict=True))):
        (slot,) = call.writes
        gradient = gradients.pop(slot, None)
        if gradient is None or slot not in needed_slots:
            continue
        own = [param_gradients.get(name) for name in link.names]
        needs = tuple(at in needed_slots for at in call.reads)
        for at, found in zip(call.reads, link.backward(program, memory, gradient, needs, own), strict=True):
            gradients[at] = add_sum_step(program, gradients.get(at), found)
        for name in link.names:
            if name in param_gradients:
                after_gradient(name)


class UnitSizes(ctypes.Structure):
    """The C struct of sizes that the functions of `units.c` take."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "columns", "depth", "kind")),
        ("number", ctypes.c_double),
    ]


def add_sum_step(program: Program, one: Buffer | None, other: Buffer | None) -> Buffer | None:
    """Add a step that sums two gradients with respect to one value; return the sum's buffer. None stands for zero."""
    if one is None or other is None:
        return one or other
    total = program.reserve_temporary(one.size)
    program.add_call("sum_forward", UnitSizes(one.size, 0, 0, 0, 0.0), one, other, total)
    return total


def add_copy_step(program: Program, gradient: Buffer | None, to: Buffer) -> None:
    """Add a step that copies a gradient to the buffer `to`, or fills the buffer with zeros if the gradient is None."""
    program.add_call("copy_or_zero", UnitSizes(to.size, 0, 0, 0, 0.0), gradient, to)
