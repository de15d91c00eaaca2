"""The one shape every method has: a schedule, and a few pure functions from values to values.

    server   begin -> broadcast ..............................-> step -> broadcast ...
    client             hear -> open -> (engine trains) -> close --^           hear -> deploy

There is no training loop, device, byte or clock in an algorithm. The engine runs one client (the loop, a deployment) or
a block of clients at once; either way these functions see one client and one message.
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
    """Whose records a client trains on: its own, or (the upper bound `pooled`) everyone's."""

    OWN = "own"
    POOLED = "pooled"


@dataclass(frozen=True)
class ModelPlan:
    """The agreement of all clients: the classes, the width of the features, and the layers of the common model.

    `layers` are names of parameters, bottom to top, the head last. Methods that accept any body use its top layer only.
    """

    n_class: int
    width: int
    layers: tuple[tuple[str, ...], ...]
    entries: int  # of all parameters of the common model together, the head's included

    def top(self, count: int) -> tuple[str, ...]:
        """The names of the parameters of the `count` topmost layers, the head's among them."""
        return tuple(name for layer in self.layers[len(self.layers) - count :] for name in layer)

    def below(self, count: int) -> tuple[str, ...]:
        """The names of the parameters of all other layers."""
        return tuple(name for layer in self.layers[: len(self.layers) - count] for name in layer)


class HiddenParams(Mapping[str, Tensor]):
    """Stands in for the parameters if a loss did not ask for them: every access is refused."""

    def __getitem__(self, name: str) -> NoReturn:
        raise InputError(
            f"a loss looked at the parameters without asking for them: {name}",
            hint="set `reads_params = True` on the loss",
        )

    def __iter__(self) -> Iterator[str]:
        return self["all of them"]

    def __len__(self) -> int:
        return self["all of them"]


@dataclass(frozen=True, eq=False)
class Batch:
    """The input of a loss. The leading axes `...` are the clients of a block; in the loop there are none."""

    features: Tensor  # (..., B, width), before the dropout on them and before any shift
    logits: Tensor  # (..., B, n_class), after both
    labels: Tensor  # (..., B)
    weights: Tensor  # (..., B): 1 / (records in the batch), 0 on padding, so that a weighted sum is the batch mean
    params: Mapping[str, Tensor] = field(default_factory=HiddenParams)
    """Name -> (..., *shape): the whole model, for losses that read it."""
    dropped: Tensor | None = None
    """(..., B, width): the features after the dropout on them, as the head sees them; None where nothing is dropped."""


Carry = Mapping[str, Tensor]
Loss = Callable[[Batch, Mapping[str, Tensor], Carry], tuple[Tensor, Carry]]
"""(batch, the client's constants, carry from the batch before) -> (loss of each client (...,), carry to the next).

A loss that looks at `batch.params` says so by an attribute `reads_params = True`.
"""


def cross_entropy(batch: Batch, constants: Mapping[str, Tensor], carry: Carry) -> tuple[Tensor, Carry]:
    """The mean of -ln softmax(logits)[label] over the batch (the paper's eq. 10, divided by the batch size)."""
    chosen = batch.logits.gather(-1, batch.labels[..., None])[..., 0]  # (..., B)
    return ((torch.logsumexp(batch.logits, -1) - chosen) * batch.weights).sum(-1), carry


@dataclass(frozen=True)
class Selection:
    """A set of parameter names: those listed, or all but those listed."""

    names: frozenset[str]
    excludes: bool

    def __contains__(self, name: object) -> bool:
        return (name in self.names) != self.excludes


def only(*names: str) -> Selection:
    """Just these parameters."""
    return Selection(frozenset(names), excludes=False)


def all_but(*names: str) -> Selection:
    """Every parameter except these."""
    return Selection(frozenset(names), excludes=True)


BODY = all_but(HEAD)
EVERYTHING = all_but()


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: which parameters move, for how long, under which loss."""

    moves: Selection
    epochs: int
    loss: Loss
    learning_rate: float

    @property
    def reads_params(self) -> bool:
        """Whether the loss reads the parameters themselves, and not only features and logits."""
        return bool(getattr(self.loss, "reads_params", False))

    def show(self, params: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The parameters, if the loss asks for them."""
        return params if self.reads_params else HiddenParams()


class BodySummary(Enum):
    """The summary that the engine computes from the trained body, in evaluation mode, over all training records."""

    NOTHING = "nothing"
    STATISTICS = "statistics"
    NUMBERS = "statistics of the features and the number to predict, joined"
    MIXTURES = "mixtures of Gaussians"


@dataclass(frozen=True)
class Exchange:
    """Local work that ends in an upload (or, for local-only methods, in none)."""

    name: str
    phases: tuple[Phase, ...]
    summary: BodySummary = BodySummary.NOTHING
    detail: Detail = Detail.MEANS
    """What is summed beyond the class sums, where the summary is STATISTICS."""
    parts: int = 1
    """Gaussians a class, where the summary is MIXTURES."""
    fewest: int | None = None
    """Records that each of several Gaussians stands for at least, where the summary is MIXTURES."""

    def summed_width(self, width: int) -> int:
        """How many features are summed: the body's, and one more for a number to predict."""
        return width + (self.summary is BodySummary.NUMBERS)


class Audience(Enum):
    """The receivers of a broadcast: the next participants, or everyone where broadcasts build on each other."""

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
    """The start of a client's training: the whole model, constants for loss and `close`, and the loss's first carry."""

    params: Params
    constants: Params = field(default_factory=dict)
    carry: Params = field(default_factory=dict)


NO_STATISTICS = Statistics.zeros(0, 1)
NO_MIXTURES = Mixtures(*torch.zeros(3, 0, 0))


@dataclass(frozen=True, eq=False)
class Trained:
    """The outcome of the local work; empty statistics and mixtures where the exchange asks for none."""

    params: Params
    statistics: Statistics
    records: int
    second: Tensor | None = None
    """Second moments, as the exchange's detail says."""
    mixtures: Mixtures = NO_MIXTURES


@runtime_checkable
class Chooses(Protocol):
    """A method with several models, of which each client chooses one by its validation records."""

    def candidates(self, home: Params, heard: Params) -> Sequence[tuple[str, Params]]:
        """The models to choose from, by name; the first is taken where there is no validation record."""


def predicts_numbers(algorithm: Algorithm) -> bool:
    """Whether the method predicts a number rather than a class."""
    return any(exchange.summary is BodySummary.NUMBERS for exchange in algorithm.schedule.round)


class Algorithm(ABC):
    """A method: a frozen dataclass of hyper-parameters around a `ModelPlan`. What most methods share stands here."""

    name: str
    """The method's name in the registry."""
    bodies = Bodies.SAME
    training = TrainingRecords.OWN
    may_federate: bool = False
    """Whether sites accept it over Flower: no body leaves a site, and bodies may differ."""
    sends_statistics: bool = False
    """Whether uploads are statistics. Only these can carry privacy noise and come from untrained bodies."""
    sums_in_the_open: bool = False
    """Whether the server must see every upload by itself, so that no secure sum and no noise on one can do."""

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """The exchanges and phases."""

    @property
    def may_leave(self) -> bool:
        """Whether a client can leave: the server's state then depends on the newest uploads alone."""
        return False

    @property
    def sums_last_uploads(self) -> bool:
        """Whether a step sums the last upload of every client, even of those that skip this exchange.

        If not, it sums the uploads of this exchange only. If so, all exchanges must have the same kind of upload.
        """
        return False

    def begin(self, key: Key) -> Params:
        """The server's first state: a seed, so that everyone starts from the same initial model, or head."""
        return {"seed": torch.tensor([key.integer()])}

    def join(self, initial: Params) -> Params:
        """The parameters that a client keeps at home at first, given the freshly initialised whole model."""
        return initial

    @abstractmethod
    def broadcast(self, server: Params) -> Message:
        """The message that the server sends to every client."""

    @abstractmethod
    def hear(self, message: Message, known: Params) -> Params:
        """The knowledge of every client after a broadcast, given the one before."""

    @abstractmethod
    def open(self, exchange: str, home: Params, heard: Params) -> Work:
        """The start of the client's training in this exchange."""

    @abstractmethod
    def close(self, exchange: str, home: Params, work: Work, trained: Trained) -> tuple[Params, Message | None]:
        """The parameters that the client keeps at home, and the message that it uploads."""

    @abstractmethod
    def step(self, exchange: str, server: Params, total: Contribution) -> Params:
        """The server's next state, from the sum of the lifted uploads."""

    @abstractmethod
    def deploy(self, home: Params, heard: Params) -> Params:
        """The whole model that is evaluated and used."""

    def observe(self, server: Params) -> dict[str, float]:
        """Figures about the server's state worth recording each round."""
        return {}

    def advice(self, rounds: int) -> tuple[str, ...]:
        """A remark for the user before a run of that many rounds; empty if there is none."""
        return ()
