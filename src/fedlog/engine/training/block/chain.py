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
        ("pass_", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("bases", ctypes.c_int64 * TENSORS),
        ("offsets", ctypes.c_int64 * TENSORS),
    ]


@dataclass(eq=False)
class Buffer:
    """The position of one client's numbers in memory: an offset from the start of the tensor number `base`."""

    numbers: int
    base: int = WORKSPACE
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Node:
    """Where the inputs, parameters and output of one layer of a chain lie in memory."""

    batch: int
    shapes: tuple[Shape, ...]  # of one record, of each input
    inputs: tuple[Buffer, ...]
    params: tuple[Buffer | None, ...]  # in the order of the link's names
    output: Buffer
    kept: list[Buffer] = field(default_factory=list)  # what else the backward pass reads


class Link(Protocol):
    """A layer of a chain (layers that one compiled call computes): it adds its steps to a program."""

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of the parameters that the layer may have."""

    def forward(self, program: Program, node: Node) -> None:
        """Add the steps that compute the node's output to the program, and keep what `backward` reads."""

    def backward(
        self, program: Program, node: Node, gradient: Buffer, needs: tuple[bool, ...], of_params: list[Buffer | None]
    ) -> list[Buffer | None]:
        """Add the steps of the gradients to the program; return the inputs' gradients, None for those not needed."""


class Program:
    """A list of compiled steps that are run for one client after another, and the memory that they need."""

    def __init__(self, dtype: torch.dtype, keeps: bool, has_tape: bool = True) -> None:
        self.keeps = keeps  # whether values are kept for a backward pass,
        self._has_tape = has_tape  # which is another program and finds them on the tape
        self.tape_numbers = 0
        self._dtype = dtype
        self._calls: list[tuple[str, ctypes.Structure, list[Buffer | None]]] = []
        self._scratch = Buffer(0)
        self._temporary: list[Buffer] = []
        self._steps: Any = None

    def reserve_temporary(self, numbers: int) -> Buffer:
        """Reserve memory for a value that only steps of this program read."""
        self._temporary.append(Buffer(numbers))
        return self._temporary[-1]

    def reserve_value(self, numbers: int) -> Buffer:
        """Reserve memory for a value that the backward pass may read."""
        if not self.keeps or not self._has_tape:
            return self.reserve_temporary(numbers)
        made = Buffer(numbers, TAPE, self.tape_numbers)
        self.tape_numbers += _round_up_to_cache_lines(numbers)
        return made

    def reserve_scratch(self, numbers: int) -> Buffer:
        """Reserve memory that a single step uses; all steps share it."""
        self._scratch.numbers = max(self._scratch.numbers, numbers)
        return self._scratch

    def add_call(self, name: str, sizes: ctypes.Structure, *buffers: Buffer | None) -> None:
        """Add a step: the compiled C function of this name, with its tensors in order."""
        self._calls.append((name, sizes, list(buffers)))

    def run(self, clients: int, bases: Sequence[Tensor | None]) -> None:
        """Run all steps for each client; `bases` are the tensors that buffers refer to as 1, 2, ... (0: workspace)."""
        if self._steps is None:
            self._steps = self._compile()
        workspace = get_scratch_space(self._scratch.offset + self._scratch.numbers, self._dtype)
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
            step.pass_ = ctypes.cast(function, ctypes.c_void_p).value
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
            starts = [0, *(_round_up_to_cache_lines(one.offset + one.numbers) for one in beside)]
            buffer.offset = next(
                start
                for start in sorted(starts)
                if all(start + buffer.numbers <= one.offset or start >= one.offset + one.numbers for one in beside)
            )
            placed.append(buffer)
        self._scratch.offset = _round_up_to_cache_lines(max((one.offset + one.numbers for one in placed), default=0))


def _round_up_to_cache_lines(numbers: int) -> int:
    return -(-numbers // _LINE) * _LINE


@dataclass(frozen=True, eq=False)
class _Plan:
    """The forward and backward programs of a chain for one batch size."""

    forward: Program
    backward: Program | None


@dataclass(frozen=True)
class _Need:
    """The key of a plan: the batch size, the parameters that exist, and what needs a gradient."""

    batch: int
    dtype: torch.dtype
    names: tuple[str, ...]
    of_values: tuple[bool, ...]
    of_params: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class ChainStage:
    """Neighbouring layers that one compiled call computes; values between layers are numbered (slots)."""

    links: tuple[Link, ...]
    calls: tuple[StageCall, ...]  # of each link
    shapes: dict[int, Shape]  # of one record in each slot
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    kept: frozenset[int]  # the slots that backward passes read
    plans: dict[_Need, _Plan] = field(default_factory=dict)

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Compute the chain, and return its values that other layers read."""
        clients = values[0].shape[0]
        names = self.list_names_in(params)
        tensors = [*values, *(get_parameter("", name, params, clients) for name in names)]
        if torch.is_grad_enabled():
            found: tuple[Tensor, ...] = _Chain.apply(self, names, *tensors)  # type: ignore[no-untyped-call]
        else:
            needs = (False,) * len(tensors)
            found = self.compute(
                self.get_plan(names, tensors, needs), [_make_clients_contiguous(one) for one in tensors]
            )[0]
        return found[0] if len(found) == 1 else found

    def list_names_in(self, params: Params) -> tuple[str, ...]:
        """The names of the chain's parameters that are in `params`."""
        return tuple(name for link in self.links for name in link.names if name in params)

    def get_plan(self, names: tuple[str, ...], tensors: Sequence[Tensor], needs: Sequence[bool]) -> _Plan:
        """The forward and backward programs for these tensors (the chain's inputs, then parameters), from a cache."""
        batch = self._read_batch_size(tensors[0])
        split = len(self.reads)
        need = _Need(batch, tensors[0].dtype, names, tuple(needs[:split]), tuple(needs[split:]))
        if need not in self.plans:
            self.plans[need] = _write_programs(self, need)
        return self.plans[need]

    def compute(self, plan: _Plan, tensors: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """The chain's outputs, and the values kept for the backward pass."""
        clients, batch = tensors[0].shape[0], self._read_batch_size(tensors[0])
        shapes = [self.shapes[slot] for slot in self.writes]
        outputs = tuple(
            tensors[0].new_empty((clients, batch, *shape) if len(shape) == 1 else (clients, *shape, batch))
            for shape in shapes
        )
        tape = tensors[0].new_empty(clients, plan.forward.tape_numbers) if plan.backward is not None else None
        plan.forward.run(clients, (tape, *tensors, *outputs))
        return outputs, tape

    def count_numbers(self, batch: int) -> dict[int, int]:
        """How many numbers a client's batch has in each slot."""
        return {slot: prod(shape) * batch for slot, shape in self.shapes.items()}

    def _read_batch_size(self, value: Tensor) -> int:
        return value.shape[1] if len(self.shapes[self.reads[0]]) == 1 else value.shape[-1]


class _Chain(Function):
    @staticmethod
    def forward(ctx: Any, stage: ChainStage, names: tuple[str, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.needs = ctx.needs_input_grad[2:]
        ctx.plan = stage.get_plan(names, tensors, ctx.needs)
        own = [_make_clients_contiguous(one) for one in tensors]
        outputs, tape = stage.compute(ctx.plan, own)
        ctx.save_for_backward(tape, *own, *outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the values and the parameters that need one."""
        return None, None, *_run_backward(ctx.plan, ctx.saved_tensors, ctx.needs, gradients)


def _run_backward(
    plan: _Plan, saved: Sequence[Tensor], needs: Sequence[bool], gradients: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of the chain's inputs and parameters that need one; `saved` begins with the kept values."""
    tape, *others = saved
    found = [
        one.new_empty(one.shape) if needed else None for one, needed in zip(others[: len(needs)], needs, strict=True)
    ]
    assert plan.backward is not None
    given = [gradient.contiguous() for gradient in gradients]
    plan.backward.run(len(given[0]), (tape, *others, *given, *found))
    return found


@dataclass(frozen=True, eq=False)
class KeptChain:
    """What the backward pass of a chain needs from the forward pass of a batch."""

    plan: _Plan
    names: tuple[str, ...]
    needs: tuple[bool, ...]
    saved: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class ChainPasses:
    """Forward and backward computation, without autograd, of a body that one compiled call (a chain) computes."""

    stage: ChainStage

    def forward(self, params: Params, batch: Tensor, masks: Masks) -> tuple[Tensor, KeptChain | None]:
        """The features (clients, batch, width), and what `backward` needs; None if no parameter needs a gradient."""
        clients = batch.shape[0]
        names = self.stage.list_names_in(params)
        tensors = [batch, *(get_parameter("", name, params, clients) for name in names)]
        needs = (False, *(params[name].requires_grad for name in names))
        plan = self.stage.get_plan(names, tensors, needs)
        own = [_make_clients_contiguous(one) for one in tensors]
        (features,), tape = self.stage.compute(plan, own)
        if tape is None:
            return features, None
        return features, KeptChain(plan, names, needs, (tape, *own, features))

    def evaluate(self, params: Params, batch: Tensor) -> Tensor:
        """The features (clients, batch, width) in evaluation; nothing is kept. Call it without autograd."""
        features = self.stage(params, None, batch)
        assert isinstance(features, Tensor)
        return features

    def backward(self, tape: KeptChain | None, gradient: Tensor, moving: Collection[str]) -> dict[str, Tensor | None]:
        """The gradients of the parameters in `moving`, from the gradient of the features."""
        if tape is None:
            return {}
        _, *found = _run_backward(tape.plan, tape.saved, tape.needs, [gradient])
        return {name: one for name, one in zip(tape.names, found, strict=True) if name in moving}


def _make_clients_contiguous(tensor: Tensor) -> Tensor:
    """Return the tensor with each client's values contiguous in memory; it is copied only if they are not."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


def _write_programs(stage: ChainStage, need: _Need) -> _Plan:
    """Write a chain's forward and backward programs.

    Buffers refer to these tensors: workspace, kept values, inputs, parameters, outputs, then the gradients of outputs,
    inputs and parameters.
    """
    needs_gradient = any((*need.of_values, *need.of_params))
    forward = Program(need.dtype, needs_gradient)
    bases = count(TAPE + 1)
    sizes = stage.count_numbers(need.batch)
    values = {slot: Buffer(sizes[slot], next(bases)) for slot in stage.reads}
    params = {name: Buffer(0, next(bases)) for name in need.names}
    values |= {slot: Buffer(sizes[slot], next(bases)) for slot in stage.writes}
    nodes = write_forward(stage, forward, need.batch, values, params)
    if not needs_gradient:
        return _Plan(forward, None)
    backward = Program(need.dtype, keeps=False)
    gradients: dict[int, Buffer | None] = {slot: Buffer(sizes[slot], next(bases)) for slot in stage.writes}
    of_values = {slot: Buffer(sizes[slot], next(bases)) for slot in stage.reads}
    every = {name: Buffer(0, next(bases)) for name in need.names}
    moving = {slot for slot, needed in zip(stage.reads, need.of_values, strict=True) if needed}
    of_params = {name: every[name] for name, needed in zip(need.names, need.of_params, strict=True) if needed}
    write_backward(stage, backward, nodes, gradients, of_params, moving)
    for slot in stage.reads:
        if slot in moving:
            add_copy(backward, gradients.get(slot), of_values[slot])
    return _Plan(forward, backward)


def write_forward(
    stage: ChainStage, program: Program, batch: int, values: dict[int, Buffer], params: Mapping[str, Buffer]
) -> list[Node]:
    """Add a chain's forward steps to a program; values that are not in `values` yet get memory and are added to it."""
    sizes, nodes = stage.count_numbers(batch), []
    for link, call in zip(stage.links, stage.calls, strict=True):
        (slot,) = call.writes
        if slot not in values:
            values[slot] = (
                program.reserve_value(sizes[slot]) if slot in stage.kept else program.reserve_temporary(sizes[slot])
            )
        inputs = tuple(values[at] for at in call.reads)
        shapes = tuple(stage.shapes[at] for at in call.reads)
        nodes.append(Node(batch, shapes, inputs, tuple(params.get(name) for name in link.names), values[slot]))
        link.forward(program, nodes[-1])
    return nodes


def write_backward(
    stage: ChainStage,
    program: Program,
    nodes: Sequence[Node],
    gradients: dict[int, Buffer | None],
    of_params: Mapping[str, Buffer],
    moving: set[int],
    finish: Callable[[str], None] = lambda name: None,
) -> None:
    """Add a chain's backward steps to a program.

    `gradients` has the gradients of the outputs; those of the inputs in `moving` are added to it. `of_params` says
    where each trained parameter's gradient goes; `finish` is called with a parameter's name once its steps are added.
    """
    moving = set(moving)
    for link, call in zip(stage.links, stage.calls, strict=True):
        if moving & {*call.reads} or of_params.keys() & {*link.names}:
            moving |= {*call.writes}
    for link, call, node in reversed(list(zip(stage.links, stage.calls, nodes, strict=True))):
        (slot,) = call.writes
        gradient = gradients.pop(slot, None)
        if gradient is None or slot not in moving:
            continue
        own = [of_params.get(name) for name in link.names]
        needs = tuple(at in moving for at in call.reads)
        for at, found in zip(call.reads, link.backward(program, node, gradient, needs, own), strict=True):
            gradients[at] = add_gradients(program, gradients.get(at), found)
        for name in link.names:
            if name in of_params:
                finish(name)


class Extent(ctypes.Structure):
    """The C struct of sizes that the functions of units.c take."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("rows", "columns", "depth", "kind")),
        ("number", ctypes.c_double),
    ]


def add_gradients(program: Program, one: Buffer | None, other: Buffer | None) -> Buffer | None:
    """Add a step that sums two gradients of one value; None stands for a gradient of zero."""
    if one is None or other is None:
        return one or other
    total = program.reserve_temporary(one.numbers)
    program.add_call("sum_forward", Extent(one.numbers, 0, 0, 0, 0.0), one, other, total)
    return total


def add_copy(program: Program, gradient: Buffer | None, to: Buffer) -> None:
    """Add a step that copies a gradient to the buffer `to`, or fills the buffer with zeros if the gradient is None."""
    program.add_call("copy_or_zero", Extent(to.numbers, 0, 0, 0, 0.0), gradient, to)
