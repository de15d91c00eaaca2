"""A body: any `nn.Module` from records to features, as a function of its parameters and its dropout masks.

The parameters of a model are a mapping from names to tensors: those of the body, and `head`, an `(n_class, 1 + width)`
matrix with the bias in column 0 (the constant first feature of the paper). Dropout layers are replaced by a
`MaskedLayer`, and the engine draws their masks from a key, so that a forward pass draws no random numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedlog.core.clip import Clip
from fedlog.core.heads.regression import NumberHead
from fedlog.core.keys import Key
from fedlog.errors import InputError, add_default_hint
from fedlog.models.masked_dropout import DropoutLayer, MaskedLayer, collect_parameters, replace_dropout
from fedlog.models.module_checks import (
    build_module,
    find_width_and_dropout,
    refuse_random_modules,
    refuse_recomputing_modules,
)

Params = dict[str, Tensor]

HEAD = "head"
SHIFT = "shift"  # an optional personal vector added to the features before the head
QUADRATIC = "quadratic"  # an optional part of the head: weights of squared features, or a matrix for each class
# Parts of a head that predicts a number; see core.heads.regression.NumberHead.
SPREAD, NOISE = "spread", "noise"
RESERVED = (HEAD, SHIFT, QUADRATIC, SPREAD, NOISE)
# The name of the dropout between features and head, if the body's last layer is dropout. It cannot be the name of a
# layer, since those do not begin with a dot.
FEATURES = ".features"


@dataclass(frozen=True, eq=False)
class Body:
    """A network that turns records into features: how to make its module, and how to run it with given parameters.

    `layers` has the names of the parameters, layer by layer from the input up. Running statistics of normalisation
    layers are among them: they are not trained, but averaged over clients if the method shares their layer.
    """

    name: str
    input_shape: tuple[int, ...]
    width: int
    layers: tuple[tuple[str, ...], ...]
    buffers: frozenset[str]
    """The names of the running statistics of normalisation layers."""
    untrained_params: frozenset[str]
    """The names of the parameters that must not be trained: `requires_grad` was off in the module."""
    dropout: tuple[DropoutLayer, ...]
    make: Callable[[], nn.Module]
    training_module: nn.Module
    """The module in training mode; `evaluation_module` is a copy in evaluation mode."""
    evaluation_module: nn.Module
    clip: Clip | None = None
    """A bound on the features, in training, in the statistics and in evaluation."""
    weights: Params | None = None
    """The parameters that all clients start from, if they were read from a file; None: drawn from a key."""

    @property
    def n_entries(self) -> int:
        """The total number of entries in parameters and running statistics."""
        values = collect_parameters(self.evaluation_module)
        return sum(values[name].numel() for layer in self.layers for name in layer)

    def make_initial_params(self, key: Key) -> Params:
        """The initial parameters and running statistics: `weights` if the body has them, else drawn from the key."""
        if self.weights is not None:
            return {name: value.clone() for name, value in self.weights.items()}
        with torch.random.fork_rng(devices=[]):
            _seed_modules(key.integer())
            module = replace_dropout(self.make())
        return {name: value.detach().clone() for name, value in collect_parameters(module).items()}

    def compute_features(
        self, params: Mapping[str, Tensor], inputs: Tensor, masks: Mapping[str, Tensor] | None
    ) -> Tensor:
        """The features, clipped if the body has a clip: (n, *input_shape) -> (n, width).

        With `masks`, the masks of the dropout layers, the body is in training mode; with None in evaluation mode. A
        dropout after the last layer is not applied here: see `apply_last_dropout`.
        """
        values = {name: params[name] for layer in self.layers for name in layer}
        for layer_name, mask in (masks or {}).items():
            if layer_name != FEATURES:
                values[f"{layer_name}.mask"] = mask
        module = self.evaluation_module if masks is None else self.training_module
        return self.clip_features(torch.func.functional_call(module, values, (inputs,)))

    def clip_features(self, features: Tensor) -> Tensor:
        """The features (..., n, width), clipped if the body has a clip."""
        return features if self.clip is None else self.clip(features)

    def apply_last_dropout(self, features: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
        """The features that the head gets in training: after the dropout at the end of the body, clipped again.

        Losses that compare features with class means use the features before this dropout. Dropout would add variance
        to the squared distances, and training would then shrink all features towards zero to reduce that variance.
        """
        if FEATURES not in masks:
            return self.clip_features(features)
        return self.clip_features(self.dropout[-1].apply(features, masks[FEATURES]))

    @property
    def ends_with_alpha_dropout(self) -> bool:
        """Whether the dropout between features and head is alpha dropout, which also shifts what it keeps."""
        return any(layer.name == FEATURES and layer.is_alpha for layer in self.dropout)


def logits(features: Tensor, params: Mapping[str, Tensor]) -> Tensor:
    """The logits of the model's head: features (..., n, width) -> (..., n, n_class).

    If the model has FedDBE's personal shift, it is first added to the features.
    """
    head = params[HEAD]
    if head.shape[-1] != 1 + features.shape[-1]:
        raise InputError(
            f"expected a head of 1 + {features.shape[-1]} columns for the body's features, found shape: "
            f"{tuple(head.shape)}",
            hint="a method's head is (classes, 1 + features), with the bias in column 0",
        )
    if SHIFT in params:
        features = features + params[SHIFT][..., None, :]
    linear = features @ head[..., 1:].mT + head[..., None, :, 0]
    if QUADRATIC not in params:
        return linear
    quadratic = params[QUADRATIC]
    if quadratic.ndim == 2:
        return linear + features.square() @ quadratic.mT
    return linear + torch.stack([((features @ each) * features).sum(-1) for each in quadratic], dim=-1)


def find_number_head(params: Mapping[str, Tensor]) -> NumberHead | None:
    """The head of a model that predicts numbers; None if the model predicts classes, or if no head was solved yet."""
    if SPREAD not in params or NOISE not in params:
        return None
    return NumberHead(params[HEAD], params[SPREAD], params[NOISE])


def draw_initial_head(width: int, n_class: int, key: Key) -> Tensor:
    """A head (n_class, 1 + width), initialised as PyTorch initialises a linear layer."""
    bound: float = width**-0.5
    uniform: Tensor = torch.rand(n_class, 1 + width, generator=key.torch()) * 2 - 1
    return uniform * bound


def _seed_modules(seed: int) -> None:
    """Seed the generators that modules draw their parameters from.

    Without an accelerator, seed only the CPU's generator. `torch.manual_seed` would also store a call stack for every
    kind of accelerator, in case one is used later: that takes half a millisecond and memory that is never freed.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@add_default_hint("docs/extend/body.md says what a body must be")
def build_body(
    name: str, make: Callable[[], nn.Module], input_shape: tuple[int, ...], clip: Clip | None = None
) -> Body:
    """The body whose module `make` builds; the module is run once on two records to find its width and dropout layers.

    With a clip, a ReLU at the end is removed: its output is never negative, so half of the clip's range would be
    unused, while privacy noise is scaled to the whole range.

    InputError for a module that does not map (n, ...) to (n, width), draws random numbers itself, uses a dropout layer
    twice, or has a parameter with a reserved name.
    """
    with torch.random.fork_rng(devices=[]):
        _seed_modules(0)  # the results below must not depend on earlier random numbers
        module = build_module(name, make)
        width, dropout = find_width_and_dropout(name, module, input_shape)
        if isinstance(module, nn.Sequential) and len(module) and isinstance(module[-1], MaskedLayer):
            module[-1] = nn.Identity()
            dropout = (*dropout[:-1], replace(dropout[-1], name=FEATURES))
        if clip is not None and isinstance(module, nn.Sequential):
            _remove_last_relu(module)
        untrained_params = frozenset(
            parameter for parameter, value in module.named_parameters() if not value.requires_grad
        )
        training = copy.deepcopy(module).train()
        refuse_random_modules(name, copy.deepcopy(training), input_shape)
        refuse_recomputing_modules(name, training, input_shape)
    taken = [value for value in collect_parameters(module) if value in RESERVED]
    if taken:
        raise InputError(
            f"body {name} has a parameter with a reserved name: {', '.join(taken)}", hint="rename the parameter"
        )
    return Body(
        name=name,
        input_shape=tuple(input_shape),
        width=width,
        layers=_group_parameters_by_layer(module),
        buffers=frozenset(buffer for buffer in collect_parameters(module) if buffer in dict(module.named_buffers())),
        untrained_params=untrained_params,
        dropout=dropout,
        make=make,
        training_module=training.requires_grad_(False),
        evaluation_module=module.requires_grad_(False),
        clip=clip,
    )


@add_default_hint("use a file of parameters that was saved from this body")
def load_weights(body: Body, path: Path) -> Body:
    """The body with parameters from a safetensors file, whose head is ignored. InputError if names or shapes differ."""
    try:
        found = {name: value for name, value in load_file(path).items() if name not in RESERVED}
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"cannot read the parameters of body {body.name} from {path}: {error}", hint="give a safetensors file"
        ) from error
    expected = {name: tuple(value.shape) for name, value in collect_parameters(body.evaluation_module).items()}
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected:
            raise InputError(f"{path} has a parameter that body {body.name} does not have: {name}")
        shape = tuple(found[name].shape) if name in found else "no such parameter"
        if shape != expected[name]:
            raise InputError(
                f"{path}: parameter {name} of body {body.name} must have shape {expected[name]}, found: {shape}"
            )
        if not bool(torch.isfinite(found[name]).all()):
            raise InputError(f"{path}: parameter {name} of body {body.name} has entries that are not finite")
    # Floats with fewer bits would be rounded after every exchange.
    return replace(
        body, weights={name: value.float() if value.is_floating_point() else value for name, value in found.items()}
    )


def _remove_last_relu(module: nn.Sequential) -> None:
    for at in reversed(range(len(module))):
        if isinstance(module[at], nn.ReLU):
            module[at] = nn.Identity()
        if not isinstance(module[at], nn.Identity):
            return


def _group_parameters_by_layer(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    grouped: dict[str, list[str]] = {}
    for name in collect_parameters(module):
        grouped.setdefault(name.rpartition(".")[0], []).append(name)
    order = {name: at for at, (name, _) in enumerate(module.named_modules())}
    return tuple(tuple(names) for _, names in sorted(grouped.items(), key=lambda item: order[item[0]]))
