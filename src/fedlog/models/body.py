"""A body: any `nn.Module` from records to features, made functional so that parameters and randomness arrive as data.

A model is a mapping from names to tensors: the body's own parameter names, and `head`, an `(n_class, 1 + width)` matrix
whose column 0 is the bias (the constant first feature of the paper). Dropout layers are replaced by `MaskedDropout`,
whose multiplier the engine draws from a key: nothing inside a forward pass draws random numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedlog.core.keys import Key
from fedlog.errors import InputError

Params = dict[str, Tensor]

HEAD = "head"
SHIFT = "shift"  # an optional personal vector added to the features before the head
RESERVED = (HEAD, SHIFT)


class MaskedDropout(nn.Module):
    """Dropout whose multiplier comes from outside: 0 or 1 / (1 - p) in training, absent (1) in evaluation."""

    multiplier: Tensor

    def __init__(self, p: float, *, per_channel: bool) -> None:
        super().__init__()
        self.p = p
        self.per_channel = per_channel
        self.register_buffer("multiplier", torch.ones(()), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` times the multiplier, one factor per record and unit (or channel)."""
        factor = self.multiplier
        if factor.ndim:
            factor = factor.reshape(*factor.shape, *(1,) * (inputs.ndim - factor.ndim))
        return inputs * factor


@dataclass(frozen=True)
class DropoutSite:
    """Where a multiplier is needed: the layer's name, its rate, and the shape of one record's multiplier."""

    name: str
    p: float
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Body:
    """An architecture: how to make it, how to run it on given parameters, what it is made of.

    `layers` are the names of the parameters, layer by layer from the input up. Running statistics of normalisation
    layers count among a layer's values (they are averaged when the layer is shared) but never move by gradient.
    """

    name: str
    input_shape: tuple[int, ...]
    width: int
    layers: tuple[tuple[str, ...], ...]
    buffers: frozenset[str]
    dropout: tuple[DropoutSite, ...]
    make: Callable[[], nn.Module]
    training: nn.Module
    evaluating: nn.Module

    @property
    def entries(self) -> int:
        """The number of entries of all parameters and running statistics together."""
        values = _named_values(self.evaluating)
        return sum(values[name].numel() for layer in self.layers for name in layer)

    def initial(self, key: Key) -> Params:
        """Freshly initialised parameters and running statistics, the same for the same key."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key.integer())
            module = _replace_dropout(self.make())
        return {name: value.detach().clone() for name, value in _named_values(module).items()}

    def features(self, params: Mapping[str, Tensor], inputs: Tensor, masks: Mapping[str, Tensor] | None) -> Tensor:
        """(n, *input_shape) -> (n, width). With masks: as in training; without: as in evaluation."""
        values = {name: params[name] for layer in self.layers for name in layer}
        if masks is None:
            return _call(self.evaluating, values, inputs)
        values |= {f"{site}.multiplier": mask for site, mask in masks.items()}
        return _call(self.training, values, inputs)


def _call(module: nn.Module, values: dict[str, Tensor], inputs: Tensor) -> Tensor:
    output: Tensor = torch.func.functional_call(module, values, (inputs,))
    return output


def logits(features: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """(..., n, width) -> (..., n, n_class): the head on the (shifted) features, its column 0 the bias."""
    head = params[HEAD]
    if SHIFT in params:
        features = features + params[SHIFT][..., None, :]
    return features @ head[..., 1:].mT + head[..., None, :, 0]


def initial_head(width: int, n_class: int, key: Key) -> Tensor:
    """An ordinary linear layer's initialisation as one (n_class, 1 + width) matrix."""
    bound: float = width**-0.5
    uniform: Tensor = torch.rand(n_class, 1 + width, generator=key.torch()) * 2 - 1
    return uniform * bound


def adopt(name: str, make: Callable[[], nn.Module], input_shape: tuple[int, ...]) -> Body:
    """The body that `make` builds, tried once on two records of zeros so that its width and dropout sites are known."""
    with torch.random.fork_rng(devices=[]):
        module = _replace_dropout(make())
    sites: dict[str, tuple[int, ...]] = {}
    for site, layer in module.named_modules():
        if isinstance(layer, MaskedDropout):
            layer.register_forward_pre_hook(_noting_shape(sites, site))
    module.eval()
    with torch.no_grad():
        try:
            output = module(torch.zeros(2, *input_shape))
        except (RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"body {name} cannot take records of shape {input_shape}: {str(error).splitlines()[0]}",
                hint="choose a body made for this data set, e.g. --body mlp:64,64",
            ) from error
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[0] != 2:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InputError(f"body {name} must map (n, ...) to (n, width), and gave for n = 2: {found}")
    for layer in module.modules():
        layer._forward_pre_hooks.clear()
    _refuse_reserved_names(name, module)
    return Body(
        name=name,
        input_shape=tuple(input_shape),
        width=output.shape[1],
        layers=_layers(module),
        buffers=frozenset(buffer for buffer in _named_values(module) if buffer in dict(module.named_buffers())),
        dropout=tuple(_site(module.get_submodule(site), site, shape) for site, shape in sites.items()),
        make=make,
        training=copy.deepcopy(module).train().requires_grad_(False),
        evaluating=module.requires_grad_(False),
    )


def _noting_shape(sites: dict[str, tuple[int, ...]], site: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sites[site] = tuple(inputs[0].shape[1:])

    return note


def _site(layer: nn.Module, name: str, shape: tuple[int, ...]) -> DropoutSite:
    assert isinstance(layer, MaskedDropout)
    return DropoutSite(name, layer.p, shape[:1] if layer.per_channel else shape)


def _replace_dropout(module: nn.Module) -> nn.Module:
    """The module with every dropout layer made a masked one, and counters that no one reads taken out."""
    if isinstance(module, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
        return MaskedDropout(module.p, per_channel=not isinstance(module, nn.Dropout))
    for name, child in module.named_children():
        setattr(module, name, _replace_dropout(child))
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        module.num_batches_tracked = None  # with a fixed momentum PyTorch only counts it, and it cannot be averaged
    return module


def _named_values(module: nn.Module) -> dict[str, Tensor]:
    buffers = {
        name: value
        for name, value in module.named_buffers()
        if value is not None and not name.endswith("multiplier") and value.is_floating_point()
    }
    return dict(module.named_parameters()) | buffers


def _layers(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    grouped: dict[str, list[str]] = {}
    for name in _named_values(module):
        grouped.setdefault(name.rpartition(".")[0], []).append(name)
    order = {name: at for at, (name, _) in enumerate(module.named_modules())}
    return tuple(tuple(names) for _, names in sorted(grouped.items(), key=lambda item: order[item[0]]))


def _refuse_reserved_names(name: str, module: nn.Module) -> None:
    taken = [value for value in _named_values(module) if value in RESERVED]
    if taken:
        raise InputError(f"body {name} has a parameter with a reserved name: {', '.join(taken)}", hint="rename it")
