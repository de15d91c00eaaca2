"""Run a user's module once to find its width and its dropout layers, and refuse modules that cannot be bodies."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedlog.errors import FedlogError, InputError, get_first_line_of_error
from fedlog.models.masked_dropout import (
    ALPHA_DROPOUTS,
    DROPOUTS,
    DropoutLayer,
    MaskedAlphaDropout,
    MaskedLayer,
    collect_parameters,
    replace_dropout,
)


def build_module(name: str, make: Callable[[], nn.Module]) -> nn.Module:
    """The module that `make` returns, with masked dropout; InputError if it cannot be a body."""
    try:
        module: object = make()
    except FedlogError:
        raise
    except Exception as error:  # a user's code may raise anything
        raise InputError(
            f"body {name} cannot be made: {type(error).__name__}: {get_first_line_of_error(error)}",
            hint="give a class or function that needs no arguments",
        ) from error
    if not isinstance(module, nn.Module):
        raise InputError(f"body {name} must be an nn.Module, found: {type(module).__name__}")
    if any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules()):
        raise InputError(
            f"body {name} has a layer compiled by torch.jit, which cannot be called with other parameters",
            hint="give the module from which it was compiled",
        )
    if any(isinstance(value, nn.parameter.UninitializedParameter) for value in module.parameters()):
        raise InputError(f"body {name} has a lazy layer, but sizes must be known", hint="give every layer its sizes")
    for value_name, value in collect_parameters(module).items():
        if value.dtype != torch.float32:
            raise InputError(
                f"body {name}: parameter {value_name} must be float32, found: "
                f"{str(value.dtype).removeprefix('torch.')}",
                hint="call .float() on the module",
            )
    for layer_name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
            raise InputError(
                f"body {name}: layer {layer_name} has momentum=None; such running averages cannot be shared",
                hint="set momentum=0.1",
            )
        if isinstance(layer, DROPOUTS + ALPHA_DROPOUTS) and layer.p == 1:
            raise InputError(f"body {name}: the dropout rate of layer {layer_name} must be below 1, found: 1")
    return replace_dropout(module)


def find_width_and_dropout(
    name: str, module: nn.Module, input_shape: tuple[int, ...]
) -> tuple[int, tuple[DropoutLayer, ...]]:
    """The width of the features, and the dropout layers in the order in which a record passes them."""
    found: list[DropoutLayer] = []
    hooks = [
        layer.register_forward_pre_hook(_make_dropout_hook(found, layer_name))
        for layer_name, layer in module.named_modules()
        if isinstance(layer, MaskedLayer)
    ]
    output = _run_trial(name, module.eval(), input_shape)
    for hook in hooks:
        hook.remove()
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[0] != 2 or not output.is_floating_point():
        described = type(output).__name__
        if isinstance(output, Tensor):
            described = f"{tuple(output.shape)} of {str(output.dtype).removeprefix('torch.')}"
        raise InputError(
            f"body {name} must turn 2 records into a float tensor of shape (2, width), found: {described}",
            hint="return one row of features for each record, for example with nn.Flatten() as the last layer",
        )
    names = [layer.name for layer in found]
    repeated = sorted({layer_name for layer_name in names if names.count(layer_name) > 1})
    if repeated:
        raise InputError(
            f"body {name} uses a dropout layer more than once: {', '.join(repeated)}",
            hint="use a new dropout layer in each place",
        )
    return output.shape[1], tuple(found)


def _run_trial(name: str, module: nn.Module, input_shape: tuple[int, ...]) -> object:
    try:
        with torch.no_grad():
            # Inputs of both signs, because some layers draw random numbers only for negative values.
            numbers = torch.arange(2 * math.prod(input_shape), dtype=torch.float32)
            return module(torch.sin(numbers).reshape(2, *input_shape))
    except Exception as error:  # wrong shapes raise many kinds of errors
        raise InputError(
            f"body {name} cannot take records of shape {input_shape}: {get_first_line_of_error(error)}",
            hint="choose a body made for this data set, e.g. --body mlp:64,64",
        ) from error


def refuse_random_modules(name: str, training: nn.Module, input_shape: tuple[int, ...]) -> None:
    """Raise an InputError if the module's forward pass draws random numbers: no run could be repeated or resumed."""
    drawing: list[str] = []
    for layer_name, layer in training.named_modules():
        _note_random_draws(drawing, layer, describe_layer(layer_name, layer) if layer_name else "")
    with _RandomCallRecorder() as functions:
        _run_trial(name, training, input_shape)
    if drawing:
        where = [drawing[0]] if drawing[0] else []  # the innermost layer ends first
        where += [f"function {functions.found[0]}"] if functions.found else []
        raise InputError(
            f"body {name} draws random numbers in its forward pass" + (f": {', '.join(where)}" if where else ""),
            hint="for dropout, use a layer of torch.nn, such as nn.Dropout or nn.AlphaDropout, which fedlog replaces",
        )


class _RandomCallRecorder(TorchFunctionMode):
    """While active, adds to `found` the name of every PyTorch function that is called and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = torch.random.get_rng_state()
        result = func(*args, **(kwargs or {}))
        if not torch.equal(before, torch.random.get_rng_state()):
            self.found.append(getattr(func, "__name__", str(func)))
        return result


def _note_random_draws(drawing: list[str], layer: nn.Module, description: str) -> None:
    """Add the description to `drawing` whenever a call of the layer draws random numbers."""
    before: list[Tensor] = []
    layer.register_forward_pre_hook(lambda *_: before.append(torch.random.get_rng_state()))

    def note(*_: object) -> None:
        if not torch.equal(before.pop(), torch.random.get_rng_state()):
            drawing.append(description)

    layer.register_forward_hook(note)


def refuse_recomputing_modules(name: str, training: nn.Module, input_shape: tuple[int, ...]) -> None:
    """Raise an InputError if the module has wrong gradients when it is called with parameters from outside.

    The gradients are compared with those of a copy that holds the same parameters itself. They are wrong with
    `torch.utils.checkpoint`, which computes layers again in the backward pass, but with the module's own parameters.
    """
    alone = copy.deepcopy(training)
    names = [each for each, value in alone.named_parameters() if value.requires_grad]
    if not names:
        return
    with torch.no_grad():
        for value in alone.parameters():
            value.mul_(0.9)  # so that they differ from the parameters that the module itself holds
    expected = _find_gradients(alone, dict(alone.named_parameters()), names, input_shape)
    if isinstance(expected, Exception) and "checkpoint" not in str(expected):
        return  # the module cannot be trained, whoever holds its parameters; some methods only need its features
    outside = {each: value.detach().clone() for each, value in alone.named_parameters()}
    for each in names:
        outside[each].requires_grad_(True)
    module = copy.deepcopy(training).requires_grad_(False)

    def call_with_outside_params(inputs: Tensor) -> Tensor:
        called: Tensor = torch.func.functional_call(module, outside, (inputs,))
        return called

    found = _find_gradients(call_with_outside_params, outside, names, input_shape)
    if (
        isinstance(expected, Exception)
        or isinstance(found, Exception)
        or not all(
            torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
            for one, other in zip(expected, found, strict=True)
        )
    ):
        raise InputError(
            f"body {name} has wrong gradients when it is called with parameters from outside, "
            "probably because of torch.utils.checkpoint",
            hint="call the layers without torch.utils.checkpoint, which computes them again with other parameters",
        )


def _find_gradients(
    module: Callable[[Tensor], Tensor], params: dict[str, Tensor], names: list[str], input_shape: tuple[int, ...]
) -> list[Tensor] | Exception:
    """The gradients with respect to the parameters `names` and to two trial records, or the error that was raised.

    A parameter that the module does not use has a gradient of zeros. The records are included because the old form of
    `torch.utils.checkpoint` would otherwise compute no gradients at all.
    """
    records = torch.sin(torch.arange(2 * math.prod(input_shape), dtype=torch.float32)).reshape(2, *input_shape)
    moving = [*(params[name] for name in names), records]
    try:
        with torch.enable_grad():
            output = module(records.requires_grad_(True))
            weights = torch.cos(torch.arange(output.numel(), dtype=torch.float32)).reshape(output.shape)
            found = torch.autograd.grad((output * weights).sum(), moving, allow_unused=True)
    except Exception as error:  # a user's module may raise anything
        return error
    return [torch.zeros_like(value) if each is None else each for value, each in zip(moving, found, strict=True)]


def describe_layer(name: str, layer: nn.Module) -> str:
    """A layer's name and type; only the type if `name` is empty, because the layer is the whole body."""
    return f"layer {name} ({type(layer).__name__})" if name else type(layer).__name__


def make_trial_records(input_shape: tuple[int, ...], count: int) -> Tensor:
    """Random records (count, *input_shape) of numbers in [0, 2), on which square roots, logarithms and lookups work."""
    return 2 * torch.rand(count, *input_shape, generator=torch.Generator().manual_seed(0))


def _make_dropout_hook(found: list[DropoutLayer], name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, MaskedLayer)
        shape = tuple(inputs[0].shape[1:])
        is_alpha = isinstance(layer, MaskedAlphaDropout)
        found.append(DropoutLayer(name, layer.p, shape[:1] if layer.per_channel else shape, is_alpha))

    return note
