"""Forward and backward passes without autograd, and the gradient of cross-entropy.

Bodies with such passes are plain bodies (only linear layers, and convolutions without padding or stride, in a row) and
bodies whose layers are all in one chain.

The operations and their order are those of the stages under autograd (`conv_stages.py`, `stages.py`, `chain.py`), so
all bits are the same. But a batch needs fewer calls, and no autograd graph.

Linear layers are computed by compiled code where its results equal PyTorch's to the last bit. A matrix library adds the
terms of each entry of a product in one fixed order, and the compiled code adds them in the same order. The two are
compared once for each size of a layer; if a bit differs, PyTorch computes the layer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from fedlog.engine.training.block import library
from fedlog.engine.training.block.chain import ChainPasses, ChainStage
from fedlog.engine.training.block.conv_stages import ConvStage
from fedlog.engine.training.block.convolve import SavedConvValues, run_backward, run_forward
from fedlog.engine.training.block.library import get_scratch_space, name_instruction_set, run_compiled
from fedlog.engine.training.block.network import (
    BlockNetwork,
    Masks,
    Params,
    StageCall,
    find_parameter,
    find_repeated_layers,
    get_parameter,
    move_batch_innermost,
    name_weight_and_bias,
    select_masks,
)
from fedlog.engine.training.block.stages import FlattenStage, LinearStage

_FIELDS = ("clients", "batch", "units_in", "units_out", "innermost", "weight_step", "bias_step")
Gradients = dict[str, Tensor | None]
_StageGradients = tuple[Tensor | None, Gradients]  # the gradients of a stage's inputs and of its parameters
PlainStage = ConvStage | LinearStage | FlattenStage


@dataclass(frozen=True, eq=False)
class _ConvPass:
    """What the backward pass of a convolution needs from the forward pass of a batch."""

    stage: ConvStage
    saved: SavedConvValues
    multipliers: list[Tensor]  # (clients, channels, 1, 1, batch)

    @classmethod
    def forward(cls, stage: ConvStage, params: Params, masks: Masks, inputs: Tensor) -> tuple[Tensor, _ConvPass]:
        weight, bias = _read_parameters(stage.name, params, inputs)
        if stage.signals:
            inputs, weight = inputs.unsqueeze(2), weight.unsqueeze(3)
        maps, saved = run_forward(stage.shape, inputs, weight, bias)
        multipliers = [mask.mT.contiguous()[:, :, None, None] for mask in select_masks(masks, stage.dropout)]
        for multiplier in multipliers:
            maps = maps * multiplier
        return maps.squeeze(2) if stage.signals else maps, cls(stage, saved, multipliers)

    def backward(self, gradient: Tensor, trained: Collection[str], needs_inputs: bool) -> _StageGradients:
        if self.stage.signals:
            gradient = gradient.unsqueeze(2)
        for multiplier in reversed(self.multipliers):
            gradient = gradient * multiplier
        names = name_weight_and_bias(self.stage.name)
        needs = (needs_inputs, names[0] in trained, names[1] in trained)
        of_inputs, of_weight, of_bias = run_backward(self.saved, gradient, needs)
        if self.stage.signals:
            of_inputs = None if of_inputs is None else of_inputs.squeeze(2)
            of_weight = None if of_weight is None else of_weight.squeeze(3)
        return of_inputs, {names[0]: of_weight, names[1]: of_bias}


@dataclass(frozen=True, eq=False)
class _LinearPass:
    """What the backward pass of a linear layer needs from the forward pass of a batch."""

    stage: LinearStage
    inputs: Tensor
    weight: Tensor
    outputs: Tensor
    multipliers: list[Tensor]

    @classmethod
    def forward(
        cls, stage: LinearStage, params: Params, masks: Masks | None, inputs: Tensor
    ) -> tuple[Tensor, _LinearPass]:
        weight, bias = _read_parameters(stage.name, params, inputs)
        outputs = compute_linear_outputs(inputs, weight, bias)
        if stage.rectify:
            outputs.clamp_min_(0)
        multipliers = select_masks(masks, stage.dropout)
        units = outputs
        for multiplier in multipliers:
            units = units * multiplier
        return units, cls(stage, inputs, weight, outputs, multipliers)

    def backward(self, gradient: Tensor, trained: Collection[str], needs_inputs: bool) -> _StageGradients:
        for multiplier in reversed(self.multipliers):
            gradient = gradient * multiplier
        if self.stage.rectify:
            gradient = torch.ops.aten.threshold_backward(gradient, self.outputs, 0)
        names = name_weight_and_bias(self.stage.name)
        of_bias = gradient.sum(1) if names[1] in trained else None
        of_inputs, of_weight = compute_product_gradients(
            self.inputs, self.weight, gradient, needs_inputs, names[0] in trained
        )
        return of_inputs, {names[0]: of_weight, names[1]: of_bias}


@dataclass(frozen=True, eq=False)
class _FlattenPass:
    """What the backward pass of flattening needs: the shape of the maps."""

    shape: torch.Size

    @classmethod
    def forward(cls, inputs: Tensor) -> tuple[Tensor, _FlattenPass]:
        return inputs.flatten(1, -2).mT, cls(inputs.shape)

    def backward(self, gradient: Tensor, trained: Collection[str], needs_inputs: bool) -> _StageGradients:
        if not needs_inputs:
            return None, {}
        turned = gradient.mT
        return (turned if turned.is_contiguous() else move_batch_innermost(gradient)).view(self.shape), {}


_LayerPass = _ConvPass | _LinearPass | _FlattenPass


@dataclass(frozen=True, eq=False)
class PlainPasses:
    """Forward and backward computation, without autograd, of a body of linear and convolution layers in a row."""

    stages: tuple[PlainStage, ...]

    def forward(self, params: Params, batch: Tensor, masks: Masks) -> tuple[Tensor, list[_LayerPass]]:
        """The features (clients, batch, width), and what `backward` needs."""
        tape: list[_LayerPass] = []
        for stage in self.stages:
            layer_pass: _LayerPass
            if isinstance(stage, ConvStage):
                batch, layer_pass = _ConvPass.forward(stage, params, masks, batch)
            elif isinstance(stage, LinearStage):
                batch, layer_pass = _LinearPass.forward(stage, params, masks, batch)
            else:
                batch, layer_pass = _FlattenPass.forward(batch)
            tape.append(layer_pass)
        return batch, tape

    def evaluate(self, params: Params, batch: Tensor) -> Tensor:
        """The features (clients, batch, width) in evaluation; nothing is kept. Call it without autograd."""
        for stage in self.stages:
            if isinstance(stage, LinearStage):
                batch, _ = _LinearPass.forward(stage, params, None, batch)
            else:
                batch = stage(params, None, batch)
        return batch

    def backward(self, tape: list[_LayerPass], gradient: Tensor, trained: Collection[str]) -> Gradients:
        """The gradients of the parameters in `trained`, from the gradient of the features."""
        found: Gradients = {}
        is_trained = [
            not isinstance(stage, FlattenStage) and any(name in trained for name in name_weight_and_bias(stage.name))
            for stage in self.stages
        ]
        first = is_trained.index(True) if any(is_trained) else len(is_trained)
        for at in range(len(tape) - 1, first - 1, -1):
            of_inputs, own = tape[at].backward(gradient, trained, at > first)
            found |= own
            if of_inputs is not None:
                gradient = of_inputs
        return found


class Passes(Protocol):
    """Forward and backward computation of a body for stacked clients, without autograd."""

    def forward(self, params: Params, batch: Tensor, masks: Masks) -> tuple[Tensor, Any]:
        """The features (clients, batch, width), and what `backward` needs."""

    def evaluate(self, params: Params, batch: Tensor) -> Tensor:
        """The features (clients, batch, width) in evaluation; nothing is kept. Call it without autograd."""

    def backward(self, tape: Any, gradient: Tensor, trained: Collection[str]) -> Gradients:
        """The gradients of the parameters in `trained`, from the gradient of the features."""


def make_passes(network: BlockNetwork) -> Passes | None:
    """Forward and backward computation without autograd, for a plain body or a single chain; None for other bodies.

    None as well if a layer is called more than once.
    """
    match network.chained:
        case (StageCall(stage=ChainStage() as chain, reads=(0,), writes=(output,)),) if output == network.output:
            return ChainPasses(chain)
    stages = tuple(step.stage for step in network.steps if isinstance(step.stage, PlainStage))
    reads = [step.reads for step in network.steps]
    writes = [step.writes for step in network.steps]
    if find_repeated_layers(network.steps):
        return None
    is_row = network.is_plain and reads == [(0,), *writes[:-1]] and writes[-1:] == [(network.output,)]
    return PlainPasses(stages) if is_row and len(stages) == len(network.steps) else None


def compute_cross_entropy_gradients(
    features: Tensor, logits: Tensor, labels: Tensor, weights: Tensor, head: Tensor, trains_head: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of each client's cross-entropy with respect to its features and, if it is trained, its head.

    Shapes are those of `Batch`, with one axis of clients in front.
    """
    weights = weights[..., None]
    gradient = (logits - torch.logsumexp(logits, -1, keepdim=True)).exp_().mul_(weights)
    gradient.scatter_add_(-1, labels[..., None], -weights)
    of_features = torch.bmm(gradient, head[..., 1:])
    if not trains_head:
        return of_features, None
    of_head = torch.empty_like(head)
    of_head[..., 0] = gradient.sum(1)
    of_head[..., 1:] = torch.bmm(features.mT, gradient).mT
    return of_features, of_head


def _read_parameters(layer: str, params: Params, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    clients = inputs.shape[0]
    return get_parameter(layer, "weight", params, clients), find_parameter(layer, "bias", params, clients)


class _ProductSizes(ctypes.Structure):
    """The C struct of sizes that a compiled product takes."""

    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


def compute_linear_outputs(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The outputs (clients, batch, units out) of a linear layer, equal to PyTorch's `baddbmm` to the last bit.

    The compiled code is used for flattened maps; other inputs would have to be transposed first.
    """
    if bias is None:
        return torch.bmm(inputs, weight.mT)
    is_map = _can_multiply_compiled(inputs, weight) and not inputs.is_contiguous() and bias[0].is_contiguous()
    if is_map and _compare_with_pytorch(*_list_comparison_arguments(inputs, weight))[0]:
        return _multiply_compiled(inputs, weight, bias)
    return torch.baddbmm(bias[:, None], inputs, weight.mT)


def compute_product_gradients(
    inputs: Tensor, weight: Tensor, gradient: Tensor, needs_inputs: bool, needs_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a linear layer's inputs and weight, or None; equal to PyTorch's `bmm` to the last bit."""
    if _can_multiply_compiled(inputs, weight) and _compare_with_pytorch(*_list_comparison_arguments(inputs, weight))[1]:
        return _compute_product_gradients_compiled(inputs, weight, gradient.contiguous(), needs_inputs, needs_weight)
    of_inputs = torch.bmm(gradient, weight) if needs_inputs else None
    return of_inputs, torch.bmm(gradient.mT, inputs) if needs_weight else None


def _can_multiply_compiled(inputs: Tensor, weight: Tensor) -> bool:
    """Whether the compiled products can read these tensors."""
    known = inputs.dtype == weight.dtype == torch.float32 and inputs.device.type == "cpu"
    readable = (inputs.is_contiguous() or inputs.mT.is_contiguous()) and weight[0].is_contiguous()
    return library.AVAILABLE and known and readable


def _list_comparison_arguments(inputs: Tensor, weight: Tensor) -> tuple[int, int, int, bool, str]:
    """The arguments of `_compare_with_pytorch` for a linear layer with these inputs and this weight."""
    return inputs.shape[1], inputs.shape[2], weight.shape[1], not inputs.is_contiguous(), name_instruction_set()


@lru_cache(maxsize=256)
def _compare_with_pytorch(
    batch: int, units_in: int, units_out: int, batch_innermost: bool, instruction_set: str
) -> tuple[bool, bool]:
    """Whether the compiled products equal PyTorch's to the last bit for these sizes: (forward, backward)."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, batch, units_in, generator=generator)
    if batch_innermost:
        inputs = inputs.mT.contiguous().mT
    weight = torch.randn(2, units_out, units_in, generator=generator)
    bias = torch.randn(2, units_out, generator=generator)
    gradient = torch.randn(2, batch, units_out, generator=generator)
    forward = torch.equal(_multiply_compiled(inputs, weight, bias), torch.baddbmm(bias[:, None], inputs, weight.mT))
    of_inputs, of_weight = _compute_product_gradients_compiled(inputs, weight, gradient, True, True)
    assert of_inputs is not None
    assert of_weight is not None
    backward = torch.equal(of_inputs, torch.bmm(gradient, weight))
    return forward, backward and torch.equal(of_weight, torch.bmm(gradient.mT, inputs))


def _multiply_compiled(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    outputs = inputs.new_empty(*inputs.shape[:2], weight.shape[1])
    _call_compiled("forward", inputs, weight, bias.stride(0), inputs, weight, bias, outputs)
    return outputs


def _compute_product_gradients_compiled(
    inputs: Tensor, weight: Tensor, gradient: Tensor, needs_inputs: bool, needs_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    of_inputs = torch.empty_like(inputs) if needs_inputs else None  # with the strides of the inputs
    of_weight = weight.new_empty(weight.shape) if needs_weight else None
    _call_compiled("backward", inputs, weight, 0, inputs, weight, gradient, of_inputs, of_weight)
    return of_inputs, of_weight


def _call_compiled(direction: str, inputs: Tensor, weight: Tensor, bias_step: int, *tensors: Tensor | None) -> None:
    """Call the product of `linear.c` for this direction; `bias_step` numbers lie from one client's bias to the next."""
    (clients, batch, units_in), units_out = inputs.shape, weight.shape[1]
    batch_innermost = int(not inputs.is_contiguous())
    sizes = _ProductSizes(clients, batch, units_in, units_out, batch_innermost, weight.stride(0), bias_step)
    scratch = get_scratch_space(batch * (units_in + 2 * units_out), inputs.dtype)
    run_compiled(f"product_{direction}", inputs.dtype, sizes, *tensors, scratch)
