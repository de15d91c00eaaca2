"""A body: any `nn.Module` from records to features, made functional so that parameters and randomness arrive as data.

A model is a mapping from names to tensors: the body's own parameter names, and `head`, an `(n_class, 1 + width)` matrix
whose column 0 is the bias (the constant first feature of the paper). Dropout layers are replaced by `MaskedDropout`,
whose multiplier the engine draws from a key: nothing inside a forward pass draws random numbers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedlog.core.clip import Clip
from fedlog.core.keys import Key
from fedlog.errors import InputError

Params = dict[str, Tensor]

HEAD = "head"
SHIFT = "shift"  # an optional personal vector added to the features before the head
RESERVED = (HEAD, SHIFT)
# The dropout site of a body whose last layer is dropout, applied between features and head. No layer can have this name:
# names of layers do not begin with a dot.
FEATURES = ".features"


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
    clip: Clip | None = None
    """A bound on the features: the same function in training, in the statistics and in evaluation."""
    weights: Params | None = None
    """What everyone starts from, where it was made elsewhere; None: initialised from a key."""

    @property
    def entries(self) -> int:
        """The number of entries of all parameters and running statistics together."""
        values = _named_values(self.evaluating)
        return sum(values[name].numel() for layer in self.layers for name in layer)

    def initial(self, key: Key) -> Params:
        """Freshly initialised parameters and running statistics, the same for the same key; or the given weights."""
        if self.weights is not None:
            return {name: value.clone() for name, value in self.weights.items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key.integer())
            module = _replace_dropout(self.make())
        return {name: value.detach().clone() for name, value in _named_values(module).items()}

    def features(self, params: Mapping[str, Tensor], inputs: Tensor, masks: Mapping[str, Tensor] | None) -> Tensor:
        """(n, *input_shape) -> (n, width), clipped. With masks: as in training; without: as in evaluation.

        A last dropout layer is not part of this: see `dropped`.
        """
        values = {name: params[name] for layer in self.layers for name in layer}
        if masks is None:
            return self.bounded(_call(self.evaluating, values, inputs))
        values |= {f"{site}.multiplier": mask for site, mask in masks.items() if site != FEATURES}
        return self.bounded(_call(self.training, values, inputs))

    def bounded(self, features: Tensor) -> Tensor:
        """The features (..., n, width) behind the body's clip; a second time changes nothing."""
        return features if self.clip is None else self.clip(features)

    def dropped(self, features: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
        """The features as the head sees them in training: the last dropout, and then the clip once more."""
        return self.bounded(dropped(features, masks))


def _call(module: nn.Module, values: dict[str, Tensor], inputs: Tensor) -> Tensor:
    output: Tensor = torch.func.functional_call(module, values, (inputs,))
    return output


def dropped(features: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
    """The features after the body's last dropout, as the head sees them in training.

    Whatever compares features with class means (which are taken in evaluation mode) uses them before it: the variance
    that dropout adds to a squared distance would be minimised by shrinking the features to nothing.
    """
    return features * masks[FEATURES] if FEATURES in masks else features


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


def adopt(name: str, make: Callable[[], nn.Module], input_shape: tuple[int, ...], clip: Clip | None = None) -> Body:
    """The body that `make` builds, tried once on two records so that its width and dropout sites are known.

    With a clip, a ReLU on the features goes: it would leave half of the range that the noise is paid for unused.

    Refused by name: what is not a module from (n, ...) to (n, width), draws random numbers of its own, uses one dropout
    layer twice, or has a parameter with a reserved name.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what is found out below must not depend on what was drawn before
        module = _built(name, make)
        width, sites = _tried(name, module, input_shape)
        if isinstance(module, nn.Sequential) and isinstance(module[-1], MaskedDropout):
            module[-1] = nn.Identity()
            sites = (*sites[:-1], replace(sites[-1], name=FEATURES))
        if clip is not None and isinstance(module, nn.Sequential):
            _take_out_last_relu(module)
        training = copy.deepcopy(module).train()
        _refuse_own_randomness(name, copy.deepcopy(training), input_shape)
    _refuse_reserved_names(name, module)
    return Body(
        name=name,
        input_shape=tuple(input_shape),
        width=width,
        layers=_layers(module),
        buffers=frozenset(buffer for buffer in _named_values(module) if buffer in dict(module.named_buffers())),
        dropout=sites,
        make=make,
        training=training.requires_grad_(False),
        evaluating=module.requires_grad_(False),
        clip=clip,
    )


def with_weights(body: Body, path: Path) -> Body:
    """The body with the parameters in a safetensors file, a head in it left aside; names and shapes must fit."""
    try:
        found = {name: value for name, value in load_file(path).items() if name not in RESERVED}
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read the parameters of body {body.name}: {path}: {error}") from error
    expected = {name: tuple(value.shape) for name, value in _named_values(body.evaluating).items()}
    for name in sorted(expected.keys() | found.keys()):
        shape = tuple(found[name].shape) if name in found else None
        if shape != expected.get(name):
            raise InputError(
                f"{path}: parameter {name} of body {body.name} must have shape {expected.get(name)}, found: {shape}",
                hint="name the body that the file was saved from",
            )
    return replace(body, weights=found)


def _take_out_last_relu(module: nn.Sequential) -> None:
    for at in reversed(range(len(module))):
        if isinstance(module[at], nn.ReLU):
            module[at] = nn.Identity()
        if not isinstance(module[at], nn.Identity):
            return


def _built(name: str, make: Callable[[], nn.Module]) -> nn.Module:
    try:
        module: object = make()
    except Exception as error:  # a user's own code: whatever it raises, it is the body that cannot be made
        raise InputError(
            f"body {name} cannot be made: {type(error).__name__}: {_first_line(error)}",
            hint="a body is a class or function that is called without arguments",
        ) from error
    if not isinstance(module, nn.Module):
        raise InputError(f"body {name} must be an nn.Module: {type(module).__name__} found")
    if any(isinstance(value, nn.parameter.UninitializedParameter) for value in module.parameters()):
        raise InputError(f"body {name} has a lazy layer, whose size is not known", hint="give every layer its sizes")
    for site, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.momentum is None:
            raise InputError(f"body {name}: layer {site} needs a momentum: cumulative averages cannot be shared")
        if isinstance(layer, _DROPOUTS) and layer.p == 1:
            raise InputError(f"body {name}: layer {site} drops everything: the rate must be below 1")
    return _replace_dropout(module)


def _tried(name: str, module: nn.Module, input_shape: tuple[int, ...]) -> tuple[int, tuple[DropoutSite, ...]]:
    """The width of the features, and the dropout sites in the order in which they are passed."""
    sites: list[DropoutSite] = []
    hooks = [
        layer.register_forward_pre_hook(_noting(sites, site))
        for site, layer in module.named_modules()
        if isinstance(layer, MaskedDropout)
    ]
    output = _trial(name, module.eval(), input_shape)
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


def _trial(name: str, module: nn.Module, input_shape: tuple[int, ...]) -> object:
    try:
        with torch.no_grad():
            return module(_waves(2, *input_shape))
    except Exception as error:  # shapes that do not fit surface as many kinds of error
        raise InputError(
            f"body {name} cannot take records of shape {input_shape}: {_first_line(error)}",
            hint="choose a body made for this data set, e.g. --body mlp:64,64",
        ) from error


def _refuse_own_randomness(name: str, training: nn.Module, input_shape: tuple[int, ...]) -> None:
    # A draw inside the forward pass would follow no key: no run with it could be repeated or resumed.
    before = torch.random.get_rng_state()
    _trial(name, training, input_shape)
    if not torch.equal(before, torch.random.get_rng_state()):
        raise InputError(
            f"body {name} draws random numbers in its forward pass",
            hint="use layers nn.Dropout, nn.Dropout1d, nn.Dropout2d or nn.Dropout3d: their draws come from keys",
        )


def _waves(*shape: int) -> Tensor:
    """Inputs of both signs: some layers draw random numbers for negative values only."""
    return torch.sin(torch.arange(math.prod(shape), dtype=torch.float32)).reshape(shape)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _noting(sites: list[DropoutSite], name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, MaskedDropout)
        shape = tuple(inputs[0].shape[1:])
        sites.append(DropoutSite(name, layer.p, shape[:1] if layer.per_channel else shape))

    return note


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def _replace_dropout(module: nn.Module) -> nn.Module:
    """The module with every dropout layer made a masked one, and counters that no one reads taken out."""
    if isinstance(module, _DROPOUTS):
        return MaskedDropout(module.p, per_channel=not isinstance(module, nn.Dropout))
    # Not `named_children`: it skips the second name of a layer that has two, and that one would stay a random layer.
    for name, child in list(module._modules.items()):
        if child is not None:
            setattr(module, name, _replace_dropout(child))
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        module.num_batches_tracked = None  # with a fixed momentum PyTorch only counts it, and it cannot be averaged
    return module


def _named_values(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and running statistics by name; dropout multipliers and whole-number buffers are neither."""
    drawn = {id(layer.multiplier) for layer in module.modules() if isinstance(layer, MaskedDropout)}
    buffers = {
        name: value
        for name, value in module.named_buffers()
        if value is not None and id(value) not in drawn and value.is_floating_point()
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
