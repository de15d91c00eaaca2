"""Compile a module into a `BlockNetwork`, which computes many stacked clients at once.

The module is traced. A layer that has a stacked version (block) is replaced by the block. Neighbouring operations that
have no block form a region, which PyTorch computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod

import torch
from torch import Tensor, nn

from fedlog.engine.training.block import map_stages  # noqa: F401 (it registers its blocks)
from fedlog.engine.training.block.agreement import have_same_features, have_same_gradients
from fedlog.engine.training.block.conv_stages import ConvStage
from fedlog.engine.training.block.links import join_chains
from fedlog.engine.training.block.network import BlockNetwork, Params, Shape, StackedBody, Stage, StageCall
from fedlog.engine.training.block.regions import extract_region, make_region_stage
from fedlog.engine.training.block.registry import BLOCKS, Block, Follower, PlacedLayer
from fedlog.engine.training.block.stages import (
    AddStage,
    AlphaDropoutStage,
    ConcatenateStage,
    DropoutStage,
    ElementwiseStage,
    FlattenStage,
    LinearStage,
)
from fedlog.engine.training.block.trace import Operation, trace
from fedlog.models.body import Body
from fedlog.models.masked_dropout import collect_parameters
from fedlog.models.module_checks import make_trial_records


def compile_stacked_body(body: Body) -> StackedBody | None:
    """The body's stacked networks for training and evaluation; None if one cannot be made, or would not be faster."""
    training = compile_module(body.training_module, body.input_shape, body.untrained_params)
    never_trained = {name for name, _ in body.evaluation_module.named_parameters()}
    evaluating = compile_module(body.evaluation_module, body.input_shape, never_trained)
    if training is None or evaluating is None or training.takes_maps != evaluating.takes_maps:
        return None
    return StackedBody(training, evaluating)


def compile_module(module: nn.Module, input_shape: Sequence[int], fixed: Collection[str] = ()) -> BlockNetwork | None:
    """The stacked network that computes the same as `module`; None if it cannot be made, or would not be faster.

    Its features and gradients are compared with the module's, except for gradients of the parameters `fixed`, which are
    never trained. Callers must make sure that records do not affect each other in the module.
    """
    if len(list(module.parameters())) < len(list(module.named_parameters(remove_duplicate=False))):
        return None  # layers share parameters, which blocks do not support
    operations = trace(module, tuple(input_shape))
    if operations is None:
        return None
    network = _Compiler(module, operations).compile()
    return network if network is not None and _computes_the_same(network, module, fixed) else None


@dataclass
class _Compiler:
    """The state of a compilation: the steps so far, and operations without a block that wait to become a region."""

    root: nn.Module
    operations: list[Operation]
    slots: dict[Operation, int] = field(default_factory=dict)
    steps: list[StageCall] = field(default_factory=list)
    waiting: list[Operation] = field(default_factory=list)
    without_block: list[str] = field(default_factory=list)
    gains: bool = False  # whether some block is faster than PyTorch

    def compile(self) -> BlockNetwork | None:
        """The network for stacked clients that computes the module; None if no block is faster than PyTorch."""
        entry, *inner, exit_ = self.operations
        (result,) = exit_.reads or (None,)
        if result is None or entry.shape is None or result.shape is None or len(result.shape) != 1 or not inner:
            return None
        takes_maps = self._register_input(entry, entry.shape, inner)
        for one in inner:
            if one in self.slots or one.shape is None:
                continue
            built = self._find_block(one)
            if built is None:
                self.waiting.append(one)
            else:
                self._close_region()
                self._append(one, built)
        self._close_region()
        if not self.gains or result not in self.slots:
            return None
        is_plain = all(_is_plain(step.stage) for step in self.steps)
        steps = self.steps if is_plain else [_use_compiled_linear(step) for step in self.steps]
        shapes = {slot: one.shape for one, slot in self.slots.items() if one.shape is not None}
        chained = [] if is_plain else join_chains(steps, shapes, self.slots[result])
        return BlockNetwork(
            entry.shape,
            takes_maps,
            _mark_values_to_free(steps, self.slots[result]),
            self.slots[result],
            tuple(self.without_block),
            numbers_per_record=sum(prod(one.shape) for one in self.operations if one.shape is not None),
            chained=_mark_values_to_free(chained, self.slots[result]),
            is_plain=is_plain,
        )

    def _register_input(self, entry: Operation, shape: Shape, inner: list[Operation]) -> bool:
        """Assign slot 0 to the input, and return whether the network takes it as maps.

        It takes vectors if the input is a vector, or an image that every operation flattens first. `inner` are all
        operations between input and output.
        """
        readers = [one for one in inner if entry in one.reads]
        self.slots[entry] = 0
        if len(shape) == 1:
            return False
        if all(isinstance(one.layer, nn.Flatten) and len(one.shape or ()) == 1 for one in readers):
            self.slots |= dict.fromkeys(readers, 0)
            return False
        return True

    def _find_block(self, one: Operation) -> Block | None:
        build = BLOCKS.get(type(one.layer)) if one.layer is not None else None
        shapes = [read.shape for read in one.reads]
        if build is None or one.layer is None or one.shape is None or None in shapes:
            return None
        known: list[Shape] = [shape for shape in shapes if shape is not None]
        return build(PlacedLayer(one.name, one.layer, tuple(known), one.shape, self._find_followers(one)))

    def _find_followers(self, one: Operation) -> tuple[Follower, ...]:
        chain = list[Follower]()
        for after in self._follow_only_readers(one):
            if after.layer is None or after.shape is None:
                break
            chain.append(Follower(after.name, after.layer, after.shape))
        return tuple(chain)

    def _follow_only_readers(self, one: Operation) -> Iterator[Operation]:
        """Yield the operations after this one, as long as each is the only reader of the operation before."""
        while (after := self._find_only_reader(one)) is not None:
            yield (one := after)

    def _find_only_reader(self, one: Operation) -> Operation | None:
        readers = [other for other in self.operations if one in other.reads]
        alone = len(readers) == 1 and readers[0].reads == [one] and readers[0].node.op != "output"
        return readers[0] if alone else None

    def _append(self, one: Operation, built: Block) -> None:
        self.gains = self.gains or not isinstance(built.stage, _TRIVIAL)
        reads = tuple(self.slots[read] for read in one.reads)
        place = len(self.slots)
        self.slots |= dict.fromkeys([one, *islice(self._follow_only_readers(one), built.absorbed)], place)
        self.steps.append(StageCall(built.stage, reads, (place,)))

    def _close_region(self) -> None:
        if not self.waiting:
            return
        region = extract_region(self.root, self.waiting, self.operations)
        stage = make_region_stage(region, [one.shape for one in region.inputs if one.shape is not None])
        self.without_block += region.names
        reads = tuple(self.slots[one] for one in region.inputs)
        for one in self.waiting:
            self.slots[one] = len(self.slots)
        self.steps.append(StageCall(stage, reads, tuple(self.slots[one] for one in region.outputs)))
        self.waiting.clear()


_TRIVIAL = (FlattenStage, ElementwiseStage, DropoutStage, AlphaDropoutStage, AddStage, ConcatenateStage)


def _is_plain(stage: Stage) -> bool:
    """Whether a plain body may have this stage: linear, flatten, or a convolution without padding, stride or groups."""
    if isinstance(stage, ConvStage):
        return not stage.shape.has_padding_or_stride and stage.shape.groups == 1
    return isinstance(stage, LinearStage | FlattenStage)


def _use_compiled_linear(step: StageCall) -> StageCall:
    """The step, with compiled code if it is a linear layer; not for plain bodies, whose results must repeat exactly."""
    if not isinstance(step.stage, LinearStage):
        return step
    return replace(step, stage=replace(step.stage, compiled=True))


def _mark_values_to_free(steps: list[StageCall], output: int) -> tuple[StageCall, ...]:
    """The steps, each with the slots to free after it: those that no later step reads, except `output`."""
    last = {at: number for number, step in enumerate(steps) for at in step.reads}
    return tuple(
        replace(step, frees=tuple(at for at in dict.fromkeys(step.reads) if last[at] == number and at != output))
        for number, step in enumerate(steps)
    )


def _computes_the_same(network: BlockNetwork, module: nn.Module, fixed: Collection[str]) -> bool:
    """Whether the network gives the module's features and gradients for two stacked clients."""
    values = {name: value.detach() for name, value in collect_parameters(module).items()}
    # Parameters of both signs, because made-up records are positive and negative values have to occur too.
    clients = [values, {name: -value for name, value in values.items()}]
    records = make_trial_records(network.input_shape, 3)
    parameters = [name for name, _ in module.named_parameters()]
    trained = [name for name in parameters if name not in fixed]
    # A negative running variance has no root, and so no gradient.
    differentiable = [values, values | {name: -values[name] for name in parameters}]

    def compute_alone(own: Params, inputs: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(module, dict(own), (inputs,))
        return found

    def compute_stacked(params: Params, inputs: Tensor) -> Tensor:
        batch = network.gather(network.arrange(inputs), torch.arange(len(inputs)).expand(len(clients), -1))
        return network.compute_features(params, batch, None)

    try:
        return have_same_features(compute_alone, compute_stacked, clients, records) and have_same_gradients(
            compute_alone, compute_stacked, differentiable, trained, records
        )
    except (RuntimeError, ValueError):
        return False
