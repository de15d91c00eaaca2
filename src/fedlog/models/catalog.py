"""Make bodies from their names on the command line and in configuration files."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import nn

from fedlog.core.clip import parse_clip
from fedlog.errors import InputError
from fedlog.files.names import did_you_mean, find_closest_name, import_callable, register_callable, was_passed_as_object
from fedlog.models.body import Body, build_body
from fedlog.models.encoders.names import make_encoder_body, split_name
from fedlog.models.frozen import make_frozen_factory
from fedlog.models.networks import (
    cifar_cnn,
    cifar_cnn_small,
    mlp,
    mlp_with_linear_output,
    mnist_cnn,
    mobilenet_v2,
    remove_dropout,
    signal_cnn,
    small_cnn,
)
from fedlog.models.own_code import refuse_unless_allowed

_FIXED = ("cnn", "cnn-plain", "cnn-small", "signal-cnn", "mobilenet-v2")
_WITH_WIDTHS = ("mlp", "mlp-signed")
# Functions that the user of this process named as bodies. They are trusted if a file names them too.
_trusted: set[str] = set()
OWN_WIDTH = 32  # the number of features passed to users' functions that have an argument `width`
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
NAMES = (
    *_FIXED,
    "mlp:64,64",
    "mlp-signed:64,2",
    "frozen:weights.safetensors",
    "identity",
    "pretrained:efficientnet-lite0",
    "onnx:encoder.onnx",
    "text:wordllama",
    "package.module:name",
    "cnn@clamp:2",
    "cnn@l2:3",
)


def make_body(name: str, input_shape: tuple[int, ...]) -> Body:
    """The body of that name, for records of that shape. `NAMES` has examples of names, with and without `@` and a clip.

    The clip is part of the name, so that it is never lost when the name is saved or sent.
    """
    encoder = split_name(name)
    if encoder is not None:
        clip = parse_clip(encoder.clip) if encoder.clip else None
        return build_body(name, lambda: make_encoder_body(encoder, input_shape), input_shape, clip)
    plain, _, clip_text = name.partition("@")
    if is_user_function(plain):
        _trusted.add(plain)
    return build_body(
        name, _find_factory(plain, input_shape), input_shape, parse_clip(clip_text) if clip_text else None
    )


def check_loaded_body(name: str, where: object) -> None:
    """Raise an InputError if a file's body is a user's function that the user neither gave as a body nor allowed.

    `where` is the file, for the error.
    """
    plain = name.partition("@")[0]
    if (
        split_name(name) is None
        and is_user_function(plain)
        and not was_passed_as_object(plain)
        and plain not in _trusted
    ):
        refuse_unless_allowed(plain, where)


def is_user_function(name: str) -> bool:
    """Whether a body's name is a user's function `package.module:name` instead of a body of the catalogue."""
    family, _, rest = name.partition(":")
    return bool(rest) and family not in ("frozen", *_WITH_WIDTHS, *_FIXED)


def name_body(given: str | nn.Module | Callable[..., nn.Module], input_shape: tuple[int, ...]) -> str:
    """The name of a body in settings and result files, given its name, a module or a function that makes one.

    The name of a module, or of a function that cannot be imported, contains a digest of it, so that different bodies
    have different names. Only a process that was given the same body can load a model with such a name.
    """
    if isinstance(given, str):
        return given
    if isinstance(given, nn.Module):
        kept = copy.deepcopy(given)
        found = hashlib.sha256(str(kept).encode())
        for value in kept.state_dict().values():
            found.update(value.detach().cpu().contiguous().numpy().tobytes())
        return register_callable(partial(copy.deepcopy, kept), f"given:{type(given).__name__}-{found.hexdigest()[:12]}")
    if not callable(given):
        raise InputError(
            f"expected a body's name, an nn.Module or a function that makes one, found: {type(given).__name__}",
            hint="--body mlp:64,64",
        )
    name = register_callable(given, None if hasattr(given, "__qualname__") else "given:function")
    if "<" not in name and not name.startswith(("given:", "__main__:")):
        return name
    with torch.random.fork_rng(devices=[]):
        made = str(_fill_in_arguments(name, given, input_shape)())
    label = name.partition(":")[2].replace("<", "").replace(">", "")
    return register_callable(given, f"given:{label}-{hashlib.sha256(made.encode()).hexdigest()[:12]}")


def _fill_in_arguments(
    name: str, make: Callable[..., nn.Module], input_shape: tuple[int, ...]
) -> Callable[[], nn.Module]:
    """The user's function with values for its arguments `input_shape` and `width`, where these have no default.

    `width`, the number of features, is `OWN_WIDTH`.
    """
    offered = {"input_shape": input_shape, "width": OWN_WIDTH}
    parameters = inspect.signature(make).parameters.values()
    asked = [each.name for each in parameters if each.default is each.empty and each.kind in _BY_NAME]
    unknown = [each for each in asked if each not in offered]
    if unknown:
        raise InputError(
            f"body {name} has arguments that fedlog does not know: {', '.join(unknown)}",
            hint="a function may have the arguments input_shape and width; give others a default",
        )
    return partial(make, **{each: offered[each] for each in asked}) if asked else make


def _find_factory(name: str, input_shape: tuple[int, ...]) -> Callable[[], nn.Module]:
    family, _, rest = name.partition(":")
    if family == "frozen":

        def find_checked_factory(inner: str) -> Callable[[], nn.Module]:
            check_loaded_body(inner, rest)
            return _find_factory(inner, input_shape)

        return make_frozen_factory(name, Path(rest), find_checked_factory)
    if family in _WITH_WIDTHS:
        return partial(mlp if family == "mlp" else mlp_with_linear_output, prod(input_shape), _parse_widths(name, rest))
    if rest and family not in _FIXED:
        meant = find_closest_name(family, _WITH_WIDTHS)
        hint = "is its folder on PYTHONPATH?" if meant is None else f"did you mean {meant}:{rest}?"
        return _fill_in_arguments(name, import_callable(name, "body", hint), input_shape)
    if rest:
        raise InputError(f"body {family} takes no widths, found: {rest}", hint=f"write just {family}")
    if family == "cnn" and input_shape in _CNNS:
        return _CNNS[input_shape]
    if family == "cnn-plain" and input_shape in _CNNS:
        return partial(remove_dropout, _CNNS[input_shape])
    if family == "cnn-small" and input_shape == (3, 32, 32):
        return cifar_cnn_small
    if family == "cnn-small" and len(input_shape) == 3 and min(input_shape[1:]) >= 12:
        return partial(small_cnn, *input_shape)
    if family == "signal-cnn" and len(input_shape) == 2 and input_shape[1] >= 32:
        return partial(signal_cnn, *input_shape)
    if family == "mobilenet-v2" and len(input_shape) == 3:
        return partial(mobilenet_v2, input_shape[0])
    if family in _FIXED:
        raise InputError(f"body {name} cannot take records of shape {input_shape}", hint="try --body mlp:64,64")
    meant = did_you_mean(family, (*_FIXED, *_WITH_WIDTHS), f"one of {', '.join(NAMES)}")
    raise InputError(f"unknown body: {name}", hint=meant)


_CNNS: dict[tuple[int, ...], Callable[[], nn.Sequential]] = {(1, 28, 28): mnist_cnn, (3, 32, 32): cifar_cnn}


def _parse_widths(name: str, text: str) -> tuple[int, ...]:
    try:
        widths = tuple(int(part) for part in text.split(","))
    except ValueError:
        widths = ()
    if not widths or min(widths) < 1:
        raise InputError(
            f"body {name}: layer widths must be whole numbers above 0, found: {text}", hint="write it like mlp:64,64"
        )
    return widths
