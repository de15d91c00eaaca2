"""The registry of blocks: for each type of layer, a function that builds the stacked version (block) of a layer."""

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
class PlacedLayer:
    """A layer, and what its block has to know of the network: the layer's input and output shapes, and what follows."""

    name: str
    layer: Any  # of the type that the builder is registered for
    shapes: tuple[Shape, ...]  # of one record, of each input
    shape_out: Shape
    followers: tuple[Follower, ...]

    @property
    def shape(self) -> Shape:
        """The shape of the layer's input, for one record; ValueError if the layer has several inputs."""
        (shape,) = self.shapes
        return shape


@dataclass(frozen=True, eq=False)
class Block:
    """The stacked version of a layer: a stage, and how many of the layers after it the stage computes as well."""

    stage: Stage
    absorbed: int = 0


Builder = Callable[[PlacedLayer], Block | None]
BLOCKS: dict[type[nn.Module], Builder] = {}


def register_block(*kinds: type[nn.Module]) -> Callable[[Builder], Builder]:
    """Register a function that builds the blocks of layers of these types.

    The function returns None for a layer that it has no block for.
    """

    def register(build: Builder) -> Builder:
        for kind in kinds:
            BLOCKS[kind] = build
        return build

    return register
