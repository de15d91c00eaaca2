"""Which layers have a block: entries by type, each a function from a layer's place in a network to its stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedlog.engine.training.block.network import Shape, Stage


@dataclass(frozen=True, eq=False)
class Follower:
    """A layer that reads nothing but the output of the one before it, which nothing else reads."""

    name: str
    layer: nn.Module
    shape_out: Shape


@dataclass(frozen=True, eq=False)
class Place:
    """A layer where it stands: its name, the shapes of its inputs and its output, and what follows in a chain."""

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
    """A stage, and how many of the layers behind its own it computes as well."""

    stage: Stage
    absorbed: int = 0


Builder = Callable[[Place], Block | None]
BLOCKS: dict[type[nn.Module], Builder] = {}


def block(*kinds: type[nn.Module]) -> Callable[[Builder], Builder]:
    """Register the builder of these layers' block; it returns None for a place that the block does not cover."""

    def register(build: Builder) -> Builder:
        for kind in kinds:
            BLOCKS[kind] = build
        return build

    return register
