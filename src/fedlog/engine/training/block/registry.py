"""The registry of blocks: for each type of layer, a function that makes the stage for a layer in a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedlog.engine.training.block.network import Shape, Stage


@dataclass(frozen=True, eq=False)
class Follower:
    """A layer that reads only the output of the layer before it, and is the only reader of that output."""

    name: str
    layer: nn.Module
    shape_out: Shape


@dataclass(frozen=True, eq=False)
class Place:
    """A layer in a network: its name, the shapes of its inputs and its output, and the layers after it (`Follower`)."""

    name: str
    layer: Any  # of the type that the builder is registered for
    shapes: tuple[Shape, ...]
    shape_out: Shape
    followers: tuple[Follower, ...]

    @property
    def shape(self) -> Shape:
        """The shape of the only input."""
        (shape,) = self.shapes
        return shape


@dataclass(frozen=True, eq=False)
class Block:
    """The code of a layer for stacked clients (a stage), and the number of following layers that it also computes."""

    stage: Stage
    absorbed: int = 0


Builder = Callable[[Place], Block | None]
BLOCKS: dict[type[nn.Module], Builder] = {}


def register_block(*kinds: type[nn.Module]) -> Callable[[Builder], Builder]:
    """Register a builder for these types of layers; it returns None for a place that its block does not support."""

    def register(build: Builder) -> Builder:
        for kind in kinds:
            BLOCKS[kind] = build
        return build

    return register
