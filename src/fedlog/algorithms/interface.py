"""The interface of every method: a schedule, and a few pure functions that the engine calls in this order:

    server   begin -> broadcast
    client   receive -> start_exchange -> (the engine trains) -> finish_exchange
    server   step -> broadcast
    client   receive -> deploy, or the next exchange

A method (in code an `Algorithm`) has no training loop, device, bytes or clock: that is the engine's work. The engine
may train one client or a block of clients at once; these functions always see one client and one message. What a client
keeps between exchanges is its `home`; what it knows from broadcasts is `received`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedlog.core.heads.mixtures import Mixtures
from fedlog.core.keys import Key
from fedlog.core.stats import Detail, Statistics
from fedlog.errors import InputError
from fedlog.models.body import HEAD, Params
from fedlog.wire.message import Contribution, Message


class Bodies(Enum):
    """Whether the clients of a method may have different architectures."""

    ANY = "any body of the common feature width"
    SAME = "the same body for everyone"


class TrainingRecords(Enum):
    """The records that a client trains on: its own, or (for `pooled`) those of all clients."""

    OWN = "own"
    POOLED = "pooled"


@dataclass(frozen=True)
class ModelPlan:
    """What all clients' models have in common: the classes, the width of the features, and the layers.

    `layers` are the names of the parameters, layer by layer from the input up, the head last. A method whose clients
    may have different bodies must use only the last of these layers, the head.
    """

    n_class: int
    width: int
    layers: tuple[tuple[str, ...], ...]
    n_entries: int  # the number of entries of all parameters together, the head's included

    def list_top_params(self, count: int) -> tuple[str, ...]:
        """The names of the parameters in the top `count` layers, the head included."""
        return tuple(name for layer in self.layers[len(self.layers) - count :] for name in layer)

    def list_params_below(self, count: int) -> tuple[str, ...]:
        """The names of the parameters below the top `count` layers."""
        return tuple(name for layer in self.layers[: len(self.layers) - count] for name in layer)


class UnrequestedParams(Mapping[str, Tensor]):
    """Stands in for the parameters if a loss has not requested them: every access raises an InputError."""

    def __getitem__(self, name: str) -> NoReturn:
        raise InputError(
            f"a loss reads parameters from `batch.params` without asking for them: {name}",
            hint="set `reads_params = True` on the loss",
        )

    def __iter__(self) -> Iterator[str]:
        return self["all of them"]

    def __len__(self) -> int:
        return self["all of them"]


@dataclass(frozen=True, eq=False)
class Batch:
    """The input of a loss. The axes `...` are clients that train together; for a single client there are none."""

    features: Tensor  # (..., B, width), before the dropout on them and before any shift
    logits: Tensor  # (..., B, n_class), after both
    labels: Tensor  # (..., B)
    weights: Tensor  # (..., B): 1 / (records in the batch), 0 on padding, so that a weighted sum is the batch mean
    params: Mapping[str, Tensor] = field(default_factory=UnrequestedParams)
    """The whole model by name, (..., *shape) each, for losses with `reads_params`."""
    after_dropout: Tensor | None = None
    """(..., B, width): the features after the dropout on them, as the head sees them; None without dropout."""


Carry = Mapping[str, Tensor]
Loss = Callable[[Batch, Mapping[str, Tensor], Carry], tuple[Tensor, Carry]]
"""(batch, the client's constants, carry of the last batch) -> (loss of each client (...,), carry for the next batch).

A loss that reads `batch.params` needs an attribute `reads_params = True`.
"""


def cross_entropy(batch: Batch, constants: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
    """The mean of -ln softmax(logits)[label] over the batch (the paper's eq. 10, divided by the batch size)."""
    chosen = batch.logits.gather(-1, batch.labels[..., None])[..., 0]  # (..., B)
    return ((torch.logsumexp(batch.logits, -1) - chosen) * batch.weights).sum(-1), carry


@dataclass(frozen=True)
class Selection:
    """A set of parameter names: those listed, or all except those listed."""

    names: frozenset[str]
    excludes: bool

    def __contains__(self, name: object) -> bool:
        return (name in self.names) != self.excludes


def select_only(*names: str) -> Selection:
    """The selection of these parameters."""
    return Selection(frozenset(names), excludes=False)


def select_all_but(*names: str) -> Selection:
    """The selection of all parameters except these."""
    return Selection(frozenset(names), excludes=True)


BODY = select_all_but(HEAD)
EVERYTHING = select_all_but()


@dataclass(frozen=True)
class Phase:
    """A part of local training: which parameters are trained, for how many epochs, with which loss."""

    trained: Selection
    epochs: int
    loss: Loss
    learning_rate: float

    @property
    def reads_params(self) -> bool:
        """Whether the loss reads the parameters, and not only features and logits."""
        return bool(getattr(self.loss, "reads_params", False))

    def select_params_for_loss(self, params: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The parameters as the loss may see them: all if it asks for them, else `UnrequestedParams`."""
        return params if self.reads_params else UnrequestedParams()


class FeatureSummary(Enum):
    """What the engine computes after training from the features of all training records, for the upload.

    The body is in evaluation mode.
    """

    NOTHING = "nothing"
    STATISTICS = "statistics"
    NUMBERS = "statistics of the features and the number to predict, joined"
    MIXTURES = "mixtures of Gaussians"


@dataclass(frozen=True)
class Exchange:
    """One exchange between clients and server: a client trains, summarises features, and sends its upload, if any."""

    name: str
    phases: tuple[Phase, ...]
    summary: FeatureSummary = FeatureSummary.NOTHING
    detail: Detail = Detail.MEANS
    """Which second moments are summed besides class sums, for the summary STATISTICS."""
    parts: int = 1
    """The number of Gaussians for each class, for the summary MIXTURES."""
    fewest: int | None = None
    """The smallest number of records for each of several Gaussians of a class, for the summary MIXTURES."""

    def count_summed_features(self, width: int) -> int:
        """The number of summed features: the body's `width`, plus 1 if the number to predict is summed with them."""
        return width + (self.summary is FeatureSummary.NUMBERS)


class Audience(Enum):
    """Who gets a broadcast: the next participants, or all clients if a broadcast builds on earlier ones."""

    NEXT = "whoever takes part next"
    EVERYONE = "everyone"


@dataclass(frozen=True)
class Schedule:
    """An optional opening exchange, the exchanges of each round, and an optional closing phase before deployment."""

    round: tuple[Exchange, ...]
    opening: Exchange | None = None
    closing: tuple[Phase, ...] = ()
    audience: Audience = Audience.NEXT


@dataclass(frozen=True, eq=False)
class Work:
    """What a client's local work starts from: its model, and values for the loss."""

    params: Params
    """The whole model."""
    constants: Params = field(default_factory=dict)
    """Values for the loss and for `finish_exchange` that training does not change."""
    carry: Params = field(default_factory=dict)
    """The first value of what a loss passes on from batch to batch."""


NO_MIXTURES = Mixtures(*torch.zeros(3, 0, 0))


@dataclass(frozen=True, eq=False)
class WorkResult:
    """The result of a client's local work; statistics and mixtures are empty unless the exchange asks for them."""

    params: Params
    """The whole model after training."""
    statistics: Statistics
    records: int
    second: Tensor | None = None
    """Second moments, in the shape of the exchange's detail."""
    mixtures: Mixtures = NO_MIXTURES


@runtime_checkable
class HasCandidates(Protocol):
    """A method that offers several models; each client chooses one on its validation records."""

    def candidates(self, home: Params, received: Params) -> Sequence[tuple[str, Params]]:
        """The models to choose from, with their names; clients without validation records take the first."""


def predicts_numbers(algorithm: Algorithm) -> bool:
    """Whether the method predicts a number instead of a class."""
    return any(exchange.summary is FeatureSummary.NUMBERS for exchange in algorithm.schedule.round)


class Algorithm(ABC):
    """The base class of methods. A method is a frozen dataclass with a `ModelPlan` and its options."""

    name: str
    """The method's name in the registry."""
    bodies = Bodies.SAME
    training = TrainingRecords.OWN
    may_federate: bool = False
    """Whether sites accept the method over Flower: no body leaves a site, and bodies may differ."""
    sends_statistics: bool = False
    """Whether uploads are statistics. Only such methods can be private or use frozen bodies."""
    sums_in_the_open: bool = False
    """Whether the server needs each upload separately, so that secure sums cannot be used."""

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """The exchanges and training phases of a run."""

    @property
    def can_remove_client(self) -> bool:
        """Whether the server's state depends only on the newest uploads, so that a client can be taken out of a run."""
        return False

    @property
    def sums_last_uploads(self) -> bool:
        """Whether a step gets the sum of the last uploads of all clients, even of those that skip this exchange.

        If not, it gets the sum of the uploads of this exchange alone. If so, all exchanges must upload the same kind of
        message.
        """
        return False

    def begin(self, key: Key) -> Params:
        """The server's first state: a seed, from which all clients make the same initial model."""
        return {"seed": torch.tensor([key.integer()])}

    def join(self, initial: Params) -> Params:
        """The first state that a client keeps (its home), given its initial model."""
        return initial

    @abstractmethod
    def broadcast(self, server: Params) -> Message:
        """The message from the server to the clients, given the server's state."""

    @abstractmethod
    def receive(self, message: Message, known: Params) -> Params:
        """What a client knows from all broadcasts up to this message; `known` is what it knew from the earlier ones."""

    @abstractmethod
    def start_exchange(self, exchange: str, home: Params, received: Params) -> Work:
        """The start of a client's training in this exchange, from what it keeps (`home`) and knows (`received`)."""

    @abstractmethod
    def finish_exchange(
        self, exchange: str, home: Params, work: Work, trained: WorkResult
    ) -> tuple[Params, Message | None]:
        """What follows from a client's training in this exchange: the state that it keeps, and its upload, if any."""

    @abstractmethod
    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The server's next state, from its old state and the sum of the uploads."""

    @abstractmethod
    def deploy(self, home: Params, received: Params) -> Params:
        """The client's whole model, from its `home` (what it keeps) and `received` (what it knows from broadcasts)."""

    def _check_option(self, name: str, holds: bool, rule: str, hint: str | None = None) -> None:
        """Raise an InputError unless `holds`; it names the option, the `rule` ("must be above 0") and the value."""
        if not holds:
            raise InputError(f"option {name} of {self.name} {rule}, found: {getattr(self, name)}", hint=hint)

    def observe(self, server: Params) -> dict[str, float]:
        """Numbers about the server's state to record each round."""
        return {}

    def advice(self, rounds: int) -> tuple[str, ...]:
        """Notes for the user before a run of that many rounds; empty if there are none."""
        return ()
