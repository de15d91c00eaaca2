"""Try a module before it becomes a body: its width, its dropout layers, and what makes it unusable."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedlog.errors import InputError, first_line
from fedlog.models.masking import DROPOUTS, DropoutSite, MaskedDropout, collect_values, replace_dropout


def build_module(name: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        module: object = make()
    except Exception as error:  # a user's own code: whatever it raises, it is the body that cannot be made
        raise InputError(
            f"body {name} cannot be made: {type(error).__name__}: {first_line(error)}",
            hint="a body is a class or function that is called without arguments",
        ) from error
    if not isinstance(module, nn.Module):
        raise InputError(f"body {name} must be an nn.Module: {type(module).__name__} found")
    if any(isinstance(value, nn.parameter.UninitializedParameter) for value in module.parameters()):
        raise InputError(f"body {name} has a lazy layer, whose size is not known", hint="give every layer its sizes")
    for value_name, value in collect_values(module).items():
        if value.dtype != torch.float32:
            raise InputError(
                f"body {name}: parameter {value_name} must be float32: {str(value.dtype).removeprefix('torch.')} found",
                hint="call .float() on the module where it is made",
            )
    for site, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
            raise InputError(
                f"body {name}: layer {site} has momentum=None, whose averages cannot be shared", hint="momentum=0.1"
            )
        if isinstance(layer, DROPOUTS) and layer.p == 1:
            raise InputError(f"body {name}: layer {site} drops everything: the rate must be below 1")
    return replace_dropout(module)


def measure_width(name: str, module: nn.Module, input_shape: tuple[int, ...]) -> tuple[int, tuple[DropoutSite, ...]]:
    """The width of the features, and the dropout sites in the order in which they are passed."""
    sites: list[DropoutSite] = []
    hooks = [
        layer.register_forward_pre_hook(_make_dropout_hook(sites, site))
        for site, layer in module.named_modules()
        if isinstance(layer, MaskedDropout)
    ]
    output = _run_trial(name, module.eval(), input_shape)
    for hook in hooks:
        hook.remove()
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[0] != 2 or not output.is_floating_point():
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"body {name} must map (n, ...) to (n, width) numbers, and gave for n = 2: {found}")
    names = [site.name for site in sites]
    repeated = sorted({site for site in names if names.count(site) > 1})
    if repeated:
        raise InputError(
            f"body {name} passes a dropout layer more than once: {', '.join(repeated)}",
            hint="give each place a layer of its own",
        )
    return output.shape[1], tuple(sites)


def _run_trial(name: str, module: nn.Module, input_shape: tuple[int, ...]) -> object:
    try:
        with torch.no_grad():
            return module(_make_waves(2, *input_shape))
    except Exception as error:  # shapes that do not fit surface as many kinds of error
        raise InputError(
            f"body {name} cannot take records of shape {input_shape}: {first_line(error)}",
            hint="choose a body made for this data set, e.g. --body mlp:64,64",
        ) from error


def refuse_own_randomness(name: str, training: nn.Module, input_shape: tuple[int, ...]) -> None:
    # A draw inside the forward pass would follow no key: no run with it could be repeated or resumed.
    before = torch.random.get_rng_state()
    _run_trial(name, training, input_shape)
    if not torch.equal(before, torch.random.get_rng_state()):
        raise InputError(
            f"body {name} draws random numbers in its forward pass",
            hint="use layers nn.Dropout, nn.Dropout1d, nn.Dropout2d or nn.Dropout3d: their draws come from keys",
        )


def refuse_reserved_names(name: str, module: nn.Module, reserved: tuple[str, ...]) -> None:
    taken = [value for value in collect_values(module) if value in reserved]
    if taken:
        raise InputError(f"body {name} has a parameter with a reserved name: {', '.join(taken)}", hint="rename it")


def trial_records(input_shape: tuple[int, ...], count: int) -> Tensor:
    """(count, *input_shape) different numbers in [0, 2): within the domain of roots, logarithms and small tables."""
    return 2 * torch.rand(count, *input_shape, generator=torch.Generator().manual_seed(0))


def _make_waves(*shape: int) -> Tensor:
    """Inputs of both signs: some layers draw random numbers for negative values only."""
    return torch.sin(torch.arange(math.prod(shape), dtype=torch.float32)).reshape(shape)


def _make_dropout_hook(sites: list[DropoutSite], name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, MaskedDropout)
        shape = tuple(inputs[0].shape[1:])
        sites.append(DropoutSite(name, layer.p, shape[:1] if layer.per_channel else shape))

    return note
