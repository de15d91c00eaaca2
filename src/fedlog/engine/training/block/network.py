"""A body as a list of steps over a stack of clients: the fast path. `compile_body` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from torch import Tensor

from fedlog.engine.training.block.layers import batch_innermost
from fedlog.engine.training.block.registry import Masks, Stage


@dataclass(frozen=True, eq=False)
class StageCall:
    """A stage, where it reads and where it writes; values that nobody reads later are let go."""

    stage: Stage
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class BlockNetwork:
    """A body for stacked clients. Inputs are gathered by `gather`, from a pool laid out once by `arrange`."""

    input_shape: tuple[int, ...]
    takes_maps: bool
    """Whether records come in as maps, not as units."""
    steps: tuple[StageCall, ...]
    output: int
    without_block: tuple[str, ...] = ()
    """The operations that `vmap` or the loop computes, between the blocks."""
    numbers_per_record: int = 1
    """Of all values between the stages: what a record needs in the cache."""
    is_plain: bool = False
    """Whether there are only linear layers and convolutions without padding and strides: always fastest in blocks."""

    def batch_shape(self, clients: int, batch: int) -> tuple[int, ...]:
        """The shape of a stacked batch: maps, or units."""
        return (clients, *self.input_shape, batch) if self.takes_maps else (clients, batch, prod(self.input_shape))

    def arrange(self, images: Tensor) -> Tensor:
        """(n, *input_shape) -> (n, pixels)."""
        return images.flatten(1).contiguous()  # not reshape(n, -1): a worker's clients may have no record

    def gather(self, arranged: Tensor, positions: Tensor) -> Tensor:
        """The stacked batch of the records at `positions` (clients, batch)."""
        clients, batch = positions.shape
        records = arranged.index_select(0, positions.reshape(-1)).view(clients, batch, -1)
        if not self.takes_maps:
            return records
        return batch_innermost(records).view(clients, *self.input_shape, batch)

    def features(self, params: Mapping[str, Tensor], batch: Tensor, masks: Masks | None) -> Tensor:
        """(clients, batch, width); differentiable in `params`, each (clients, *shape) or (1, *shape) if shared.

        `masks` holds each dropout layer's multiplier (clients, batch, channels or units), >= 0; None: evaluation.
        """
        values = {0: batch}
        for step in self.steps:
            found = step.stage(params, masks, *(values[at] for at in step.reads))
            for at in step.frees:
                del values[at]
            values |= zip(step.writes, found if isinstance(found, tuple) else (found,), strict=True)
        return values[self.output]


@dataclass(frozen=True, eq=False)
class StackedBody:
    """A body's two ways of running as stacked networks: in training, where there are masks, and in evaluation."""

    training: BlockNetwork
    evaluating: BlockNetwork

    @property
    def takes_maps(self) -> bool:
        """Whether records come in as maps, not as units."""
        return self.training.takes_maps

    def batch_shape(self, clients: int, batch: int) -> tuple[int, ...]:
        """The shape of a stacked batch."""
        return self.training.batch_shape(clients, batch)

    def arrange(self, images: Tensor) -> Tensor:
        """A pool of inputs in the layout from which batches are gathered."""
        return self.training.arrange(images)

    def gather(self, arranged: Tensor, positions: Tensor) -> Tensor:
        """The stacked batch of the records at these positions (clients, batch)."""
        return self.training.gather(arranged, positions)

    def features(self, params: Mapping[str, Tensor], batch: Tensor, masks: Masks | None) -> Tensor:
        """(clients, batch, width)."""
        network = self.evaluating if masks is None else self.training
        return network.features(params, batch, masks)
