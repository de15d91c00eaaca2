"""Find out whether a body treats each record of a batch independently, as stacked training and DP-SGD need.

Stacked training pads short batches, and DP-SGD sums the gradients of single records. Both are wrong if the records of
a batch affect each other, or if a forward pass changes the state of the body.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedlog.models.body import Body
from fedlog.models.masked_dropout import collect_parameters
from fedlog.models.module_checks import describe_layer, make_trial_records


def describe_mixing_layer(body: Body) -> str | None:
    """A sentence about a layer that mixes the records of a batch, or keeps running statistics; None without one."""
    for name, layer in body.training_module.named_modules():
        normalises = isinstance(layer, nn.modules.batchnorm._BatchNorm)
        if normalises and (layer.training or layer.running_mean is None):
            return f"{describe_layer(name, layer)} lets the records of a batch affect each other"
        if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.training and layer.track_running_stats:
            return f"{describe_layer(name, layer)} keeps running statistics"
    return _describe_mixing_in_trial(body)


def describe_tied_parameters(body: Body) -> str | None:
    """A sentence that names the first two parameters that are one and the same tensor; None if there are none."""
    owners: dict[int, str] = {}
    for name, value in body.training_module.named_parameters(remove_duplicate=False):
        first = owners.setdefault(id(value), name)
        if first != name:
            return f"{first} and {name} are one shared parameter"
    return None


def explain_record_dependence(body: Body) -> str | None:
    """A sentence that says why a body cannot treat each record independently; None if it can."""
    return describe_mixing_layer(body) or describe_tied_parameters(body)


def _describe_mixing_in_trial(body: Body) -> str | None:
    """A sentence about a layer whose output for one record differs between two batches; None without one."""
    first, second, *rest = make_trial_records(body.input_shape, 5)
    batches = (torch.stack([first, second, rest[0]]), torch.stack([first, *rest[1:]]))
    try:
        found, changed = (_collect_outputs_for_first_record(body, batch) for batch in batches)
    except Exception:  # a user's module may raise anything for records that are not its data
        return "its forward pass fails on made-up records, so it cannot be tried"
    for name, one in found.items():
        other = changed.get(name, one)
        if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"{name} lets the records of a batch affect each other"
    return None


def _collect_outputs_for_first_record(body: Body, inputs: Tensor) -> dict[str, Tensor]:
    """Run the body on a batch; return its output for the first record, and that of every layer without sub-layers."""
    noted: dict[str, Tensor] = {}

    def make_hook(name: str) -> Any:
        def note(layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, Tensor) and output.ndim > 0 and len(output) == len(inputs):
                noted.setdefault(describe_layer(name, layer), output[0].detach().clone())

        return note

    hooks = [
        layer.register_forward_hook(make_hook(name))
        for name, layer in body.training_module.named_modules()
        if not any(True for _ in layer.children())
    ]
    try:
        values = {name: value.detach().clone() for name, value in collect_parameters(body.training_module).items()}
        features = body.compute_features(values, inputs, {})
    finally:
        for hook in hooks:
            hook.remove()
    return {**noted, "the body": features[0]}
