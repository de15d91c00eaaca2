"""Which layers have a block: entries by type, each a function from a layer's place in a network to its stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

Shape = tuple[int, ...]
"""Of one record. Stacked, a list of units is (clients, batch, units), and all else a map (clients, *shape, batch)."""
Params = Mapping[str, Tensor]
Masks = Mapping[str, Tensor]


class Stage(Protocol):
    """One step of a stacked network: stacked values in, stacked values out."""

    def __call__(self, params: Params, masks: Masks | None, *values: Tensor) -> Tensor | tuple[Tensor, ...]:
        """The stage's output; differentiable in the parameters and the values. No masks: as in evaluation."""
        ...


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
        """Of the only input."""
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


def parameters(name: str, names: tuple[str, ...], params: Params, clients: int) -> list[Tensor | None]:
    """These of a layer's parameters, (clients, *shape) each, None where the layer has none; shared ones expanded."""
    found: list[Tensor | None] = []
    for own in names:
        value = params.get(f"{name}.{own}" if name else own)
        if value is not None and value.shape[0] != clients:
            value = value.expand(clients, *value.shape[1:])
        found.append(value)
    return found


def select_masks(masks: Masks | None, names: tuple[str, ...]) -> list[Tensor]:
    """The multipliers of these dropout layers; none in evaluation."""
    return [] if masks is None else [masks[name] for name in names]
