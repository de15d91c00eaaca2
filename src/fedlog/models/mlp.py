"""Multilayer perceptrons, for tables and for the synthetic experiment."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def mlp(inputs: int, widths: tuple[int, ...]) -> nn.Sequential:
    """Records of `inputs` numbers -> `widths[-1]` features, ReLU after every layer."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise((inputs, *widths)):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def mlp_signed(inputs: int, widths: tuple[int, ...]) -> nn.Sequential:
    """As `mlp`, without the last ReLU: features have both signs, as plots of two features need."""
    return nn.Sequential(*list(mlp(inputs, widths))[:-1])
